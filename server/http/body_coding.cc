#include "server/http/body_coding.h"

#include <zlib.h>

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

constexpr int64_t kPieceBytes = 64 << 10;
// zlib's numbers: the largest window, and what is added to it for gzip's head and tail.
constexpr int kWindowBits = 15;
constexpr int kGzipBit = 16;

// A stream of zlib, whose state is freed at the end of its scope.
class InflateStream {
 public:
  InflateStream(BodyCoding coding, std::string_view body) {
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(body.data()));
    stream_.avail_in = static_cast<uInt>(body.size());  // a body has less than 4 GiB
    const int made = inflateInit2(&stream_, kWindowBits + (coding == BodyCoding::kGzip ? kGzipBit : 0));
    if (made == Z_MEM_ERROR) throw std::bad_alloc();
    CHECK_EQ(made, Z_OK);
  }
  ~InflateStream() { inflateEnd(&stream_); }
  InflateStream(const InflateStream&) = delete;
  InflateStream& operator=(const InflateStream&) = delete;

  // Inflates into `piece`. Returns zlib's code; `size` becomes the number of bytes that were written.
  int Next(char* piece, size_t& size) {
    stream_.next_out = reinterpret_cast<Bytef*>(piece);
    stream_.avail_out = static_cast<uInt>(size);
    const int code = inflate(&stream_, Z_NO_FLUSH);
    if (code == Z_MEM_ERROR) throw std::bad_alloc();
    size -= stream_.avail_out;
    return code;
  }
  bool has_input() const { return stream_.avail_in > 0; }

 private:
  z_stream stream_ = {};
};

}  // namespace

BodyCoding CodingOf(const HttpRequest& head) {
  BodyCoding coding = BodyCoding::kNone;
  for (const auto& [name, value] : head.headers) {
    if (name != "content-encoding" || absl::EqualsIgnoreCase(value, "identity")) continue;
    if (coding != BodyCoding::kNone) return BodyCoding::kOther;
    const bool is_gzip = absl::EqualsIgnoreCase(value, "gzip") || absl::EqualsIgnoreCase(value, "x-gzip");
    const bool is_deflate = absl::EqualsIgnoreCase(value, "deflate");
    coding = is_gzip ? BodyCoding::kGzip : is_deflate ? BodyCoding::kDeflate : BodyCoding::kOther;
  }
  return coding;
}

std::optional<HttpRefusal> Inflate(BodyCoding coding, std::string_view body, int64_t max_bytes,
                                   BodyBudget& budget, InflatedBody& inflated) {
  const char* const name = coding == BodyCoding::kGzip ? "gzip" : "deflate";
  InflateStream stream(coding, body);
  std::vector<char> piece(kPieceBytes);
  while (true) {
    size_t size = piece.size();
    const int code = stream.Next(piece.data(), size);
    const auto written = static_cast<int64_t>(size);
    if (static_cast<int64_t>(inflated.text.size()) + written > max_bytes) {
      return HttpRefusal{413, absl::StrCat("body: larger than ", max_bytes, " bytes once it is inflated")};
    }
    if (!budget.Take(written)) {
      return HttpRefusal{503, "the bodies of other requests take all the memory there is for them"};
    }
    inflated.taken += written;
    inflated.text.append(piece.data(), size);
    if (code == Z_STREAM_END) break;
    if (code == Z_BUF_ERROR || (code == Z_OK && size == 0 && !stream.has_input())) {
      return HttpRefusal{400, absl::StrCat("body: Content-Encoding ", name, ": the stream is cut short")};
    }
    if (code != Z_OK) {
      return HttpRefusal{400, absl::StrCat("body: Content-Encoding ", name, ": no such stream")};
    }
  }
  if (!stream.has_input()) return std::nullopt;
  return HttpRefusal{400,
                     absl::StrCat("body: Content-Encoding ", name, ": bytes behind the end of the stream")};
}

}  // namespace foredraft
