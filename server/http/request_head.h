#pragma once

// The head of a request: collected up to its empty line, whatever pieces it comes in, and then read. Its
// bytes and lines are counted here: Boost.Beast, which reads it, counts only the bytes of one call, and many
// short lines take twelve times as much memory as on the wire. Not thread-safe.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/http/http_limits.h"
#include "server/http/http_message.h"
#include "server/http/line_reader.h"

namespace foredraft {

// Why a request is not read; the connection cannot go on.
struct HttpRefusal {
  int status = 400;
  std::string text;
};

// Whether a request may have the field only once, and a body's trailers not at all. Readers would differ
// in which of two such fields they take, and in whether they take a late one.
bool IsSingleField(std::string_view lower_name);

class RequestHead {
 public:
  explicit RequestHead(const HttpLimits& limits) : limits_(limits) {}

  // Takes the head's bytes from the front of `bytes`, and returns their number: all, unless the head ends
  // there or is refused.
  size_t Take(std::string_view bytes);
  bool is_whole() const { return is_whole_; }
  const std::optional<HttpRefusal>& refusal() const { return refusal_; }

  // Reads the whole head into method, path and headers of `request`; "host" becomes the host that the request
  // is for, also where the target names it. False: refusal() says why.
  bool Read(HttpRequest& request);

  // After Read:
  bool is_http_1_0() const { return is_http_1_0_; }
  bool keep_alive() const { return keep_alive_; }
  bool is_chunked() const { return is_chunked_; }
  int64_t content_length() const { return content_length_; }  // 0 without one
  bool expects_continue() const { return expects_continue_; }

 private:
  bool Refuse(int status, std::string text);  // false
  // The line that line_ holds.
  bool TakeLine();
  bool Parse(HttpRequest& request, std::string& target);
  bool CheckSingle(const HttpRequest& request);
  bool ReadTarget(const std::string& target, HttpRequest& request);
  bool CheckHost(const HttpRequest& request);
  bool ReadLength(const HttpRequest& request);
  bool ReadExpect(const HttpRequest& request);

  const HttpLimits& limits_;
  LineReader line_;
  std::string text_;  // the lines so far
  int64_t bytes_ = 0;
  int lines_ = 0;
  bool skipped_empty_ = false;  // an empty line before the request, which some clients send after a body
  bool is_whole_ = false;
  std::optional<HttpRefusal> refusal_;

  bool is_http_1_0_ = false;
  bool keep_alive_ = false;
  bool is_chunked_ = false;
  bool expects_continue_ = false;
  int64_t content_length_ = 0;
};

}  // namespace foredraft
