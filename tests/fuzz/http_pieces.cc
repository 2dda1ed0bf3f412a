#include "tests/fuzz/http_pieces.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/http/request_reader.h"

namespace foredraft {
namespace {

constexpr int kMostRequests = 16;
constexpr size_t kMostSplits = 256;  // of one input

std::string Told(const RequestReader& reader, const HttpRequest& request) {
  std::string told = absl::StrCat(request.method, " ", request.path, " ", reader.keep_alive(),
                                  reader.is_http_1_0(), reader.has_body(), reader.expects_continue(), "\n");
  for (const auto& [name, value] : request.headers) absl::StrAppend(&told, name, ":", value, "\n");
  return absl::StrCat(told, "\n", request.body);
}

}  // namespace

HttpLimits FuzzedLimits() {
  HttpLimits limits;
  limits.max_head_bytes = 512;
  limits.max_head_fields = 8;
  limits.max_body_bytes = 1024;
  limits.max_framing_bytes = 64;
  return limits;
}

std::vector<std::string> ReadInPieces(const std::string& bytes, size_t first, size_t piece) {
  const HttpLimits limits = FuzzedLimits();
  std::vector<std::string> told;
  std::string input = bytes.substr(0, first);
  size_t at = input.size();
  while (told.size() < kMostRequests) {
    RequestReader reader(limits, "ipv4:1.2.3.4:5");
    RequestReader::Progress progress = reader.Feed(input);
    while (progress == RequestReader::Progress::kHead ||
           (progress == RequestReader::Progress::kMore && at < bytes.size())) {
      if (progress == RequestReader::Progress::kMore) {
        CHECK(input.empty()) << "what a reader leaves has no bound";
        input = bytes.substr(at, piece);
        at += input.size();
      }
      progress = reader.Feed(input);
      CHECK_LE(reader.body_bytes(), limits.max_body_bytes + limits.max_framing_bytes + 16);
    }
    if (progress == RequestReader::Progress::kWhole) {
      told.push_back(Told(reader, reader.request()));
      CHECK_LE(reader.request().headers.size(),
               static_cast<size_t>(limits.max_head_fields) + 1);  // its authority
      continue;
    }
    if (progress == RequestReader::Progress::kRefused) {
      const HttpRefusal& refusal = reader.refusal();
      CHECK(refusal.status >= 400 && refusal.status < 600) << refusal.status;
      CHECK(!refusal.text.empty() && refusal.text.size() < 1000);
      told.push_back(absl::StrCat(refusal.status, " ", refusal.text));
    } else {
      told.push_back("more");
    }
    return told;
  }
  return told;
}

void CheckEverySplit(const std::string& bytes, unsigned char choice) {
  const std::vector<std::string> whole = ReadInPieces(bytes, bytes.size(), bytes.size() + 1);
  CHECK(ReadInPieces(bytes, 0, 1) == whole) << "byte by byte";
  CHECK(ReadInPieces(bytes, 0, size_t{choice} + 1) == whole) << "in pieces of " << choice + 1;
  const size_t step = std::max<size_t>(bytes.size() / kMostSplits, 1);
  for (size_t at = choice % step; at < bytes.size(); at += step) {
    CHECK(ReadInPieces(bytes, at, bytes.size()) == whole) << "cut at " << at;
  }
}

}  // namespace foredraft
