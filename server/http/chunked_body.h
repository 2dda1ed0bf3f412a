#pragma once

// Decodes a chunked body (RFC 9112, section 7.1), whatever pieces it comes in. The bytes that are not data
// are bounded: extensions and trailers could go on for ever, and mean nothing here. Not thread-safe.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "server/http/http_limits.h"
#include "server/http/line_reader.h"
#include "server/http/request_head.h"

namespace foredraft {

class ChunkedBody {
 public:
  explicit ChunkedBody(const HttpLimits& limits) : limits_(limits) {}

  // Takes bytes from the front of `bytes`, appends the data among them to `body`, and returns how many it
  // took: all, unless the body ends there or is refused.
  size_t Take(std::string_view bytes, std::string& body);
  bool is_whole() const { return part_ == Part::kDone; }
  const std::optional<HttpRefusal>& refusal() const { return refusal_; }
  // Bytes of memory that this holds in addition to the data.
  int64_t held_bytes() const { return static_cast<int64_t>(line_.line().size()); }

 private:
  enum class Part { kSize, kData, kDataEnd, kTrailers, kDone };

  void TakeFraming(char byte, const std::string& body);
  // Takes the line that line_ holds.
  void TakeLine(const std::string& body);
  bool ReadSize(std::string_view line, const std::string& body);
  bool Refuse(int status, std::string text);  // false

  const HttpLimits& limits_;
  Part part_ = Part::kSize;
  LineReader line_;
  int64_t data_left_ = 0;     // of the chunk
  int64_t framing_ = 0;       // bytes of this line
  int64_t framing_more_ = 0;  // of the lines before it, beyond what small chunks need
  int trailers_ = 0;
  std::optional<HttpRefusal> refusal_;
};

}  // namespace foredraft
