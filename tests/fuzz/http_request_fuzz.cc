// Bytes of a connection, in pieces whose size the first byte chooses: requests or a refusal, whatever the
// pieces are, and nothing larger than the limits.

#include <cstdint>
#include <string>
#include <vector>

#include "base/check.h"
#include "server/http/request_reader.h"

namespace foredraft {
namespace {

constexpr int kMostRequests = 16;

HttpLimits SmallLimits() {
  HttpLimits limits;
  limits.max_head_bytes = 512;
  limits.max_body_bytes = 1024;
  return limits;
}

// The requests that `bytes` hold, and in the end the status of a refusal.
std::vector<std::string> ReadAll(const std::string& bytes, size_t piece) {
  const HttpLimits limits = SmallLimits();
  std::vector<std::string> read;
  std::string input;
  size_t at = 0;
  while (read.size() < kMostRequests) {
    RequestReader reader(limits, "ipv4:1.2.3.4:5");
    RequestReader::Progress progress = RequestReader::Progress::kMore;
    while (true) {
      progress = reader.Feed(input);
      if (progress == RequestReader::Progress::kHead) continue;
      if (progress != RequestReader::Progress::kMore || at >= bytes.size()) break;
      input += bytes.substr(at, piece);
      at += piece;
    }
    if (progress == RequestReader::Progress::kMore) return read;
    if (progress == RequestReader::Progress::kRefused) {
      CHECK(reader.refusal_status() >= 400 && reader.refusal_status() < 600) << reader.refusal_status();
      CHECK(!reader.refusal_text().empty());
      read.push_back(std::to_string(reader.refusal_status()));
      return read;
    }
    const HttpRequest request = reader.TakeRequest();
    CHECK_LE(static_cast<int64_t>(request.body.size()), limits.max_body_bytes);
    read.push_back(request.method + " " + request.path + " " + request.body);
  }
  return read;
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  (void)foredraft::ReadAll(bytes, data[0] + size_t{1});
  return 0;
}
