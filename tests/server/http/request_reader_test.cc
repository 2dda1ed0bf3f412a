#include "server/http/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using Progress = RequestReader::Progress;

constexpr char kPost[] = "POST /x?a=1 HTTP/1.1\r\nHost: h\r\nX-One: 1\r\n";

struct Outcome {
  Progress progress = Progress::kMore;
  HttpRequest request;
  int status = 0;
  std::string text;
  std::string rest;
};

// Feeds `bytes` in pieces of `piece` bytes until the request is whole or refused.
Outcome Feed(const std::string& bytes, size_t piece = 1 << 20, const HttpLimits& limits = {}) {
  RequestReader reader(limits, "ipv4:1.2.3.4:5");
  Outcome outcome;
  std::string input;
  for (size_t at = 0; at < bytes.size() || !input.empty();) {
    input += bytes.substr(std::min(at, bytes.size()), piece);
    at += piece;
    outcome.progress = reader.Feed(input);
    if (outcome.progress == Progress::kHead) outcome.progress = reader.Feed(input);
    if (outcome.progress == Progress::kMore && at < bytes.size()) continue;
    break;
  }
  outcome.status = reader.refusal_status();
  outcome.text = reader.refusal_text();
  outcome.request = reader.TakeRequest();
  outcome.rest = input;
  return outcome;
}

TEST(RequestReader, ReadsABodyByItsLengthInAnyPieces) {
  for (const size_t piece : {1, 3, 1000}) {
    const Outcome read = Feed(absl::StrCat(kPost, "Content-Length: 5\r\n\r\nhelloGET"), piece);
    ASSERT_EQ(read.progress, Progress::kWhole) << piece;
    EXPECT_EQ(read.request.method, "POST");
    EXPECT_EQ(read.request.path, "/x");
    EXPECT_EQ(read.request.Header("x-one"), "1");
    EXPECT_EQ(read.request.Header("other"), "");
    EXPECT_EQ(read.request.body, "hello");
    EXPECT_EQ(std::string("GET").substr(0, read.rest.size()), read.rest);
  }
}

TEST(RequestReader, JoinsChunks) {
  for (const size_t piece : {1, 1000}) {
    const Outcome read = Feed(
        absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"), piece);
    ASSERT_EQ(read.progress, Progress::kWhole) << read.text;
    EXPECT_EQ(read.request.body, "abcde");
  }
}

TEST(RequestReader, TakesChunksCutAnywhere) {
  for (const char* body : {"0\r\n\r\n", "1\r\na\r\n0\r\n\r\n", "0\r\nX: y\r\n\r\n", "00;a=b\r\n\r\n"}) {
    const std::string bytes = absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n", body);
    for (size_t first = bytes.size() - std::string(body).size(); first < bytes.size(); ++first) {
      for (size_t second = first; second < bytes.size(); ++second) {
        RequestReader reader({}, "ipv4:1.2.3.4:5");
        std::string input = bytes.substr(0, first);
        EXPECT_EQ(reader.Feed(input), Progress::kHead);
        EXPECT_EQ(reader.Feed(input), Progress::kMore);
        input += bytes.substr(first, second - first);
        EXPECT_EQ(reader.Feed(input), Progress::kMore);
        input += bytes.substr(second);
        EXPECT_EQ(reader.Feed(input), Progress::kWhole) << body << first << " " << second;
        EXPECT_EQ(reader.TakeRequest().body, body[0] == '1' ? "a" : "");
      }
    }
  }
}

TEST(RequestReader, ARequestWithoutABodyIsWholeAtOnce) {
  EXPECT_EQ(Feed("GET / HTTP/1.0\r\n\r\n").progress, Progress::kWhole);
  EXPECT_EQ(Feed("POST / HTTP/1.1\r\nContent-Length: 0\r\n\r\n").progress, Progress::kWhole);
}

struct Refused {
  const char* name;
  std::string bytes;
  int status;
};

class RefusedRequest : public testing::TestWithParam<Refused> {};

TEST_P(RefusedRequest, EndsTheConnection) {
  HttpLimits limits;
  limits.max_body_bytes = 100;
  for (const size_t piece : {7, 1 << 20}) {
    const Outcome read = Feed(GetParam().bytes, piece, limits);
    EXPECT_EQ(read.progress, Progress::kRefused) << piece;
    EXPECT_EQ(read.status, GetParam().status) << read.text;
    EXPECT_NE(read.text, "");
  }
}

std::string ManyHeaders(int count) {
  std::string text = kPost;
  for (int i = 0; i < count; ++i) absl::StrAppend(&text, "X", i, ": 1\r\n");
  return text + "\r\n";
}

INSTANTIATE_TEST_SUITE_P(
    Requests, RefusedRequest,
    testing::Values(
        Refused{"TwoLengths", absl::StrCat(kPost, "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab"), 400},
        Refused{"TwoEqualLengths", absl::StrCat(kPost, "Content-Length: 1\r\nContent-Length: 1\r\n\r\na"),
                400},
        Refused{"LengthAndChunks",
                absl::StrCat(kPost, "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400},
        Refused{"ChunksAndLength",
                absl::StrCat(kPost, "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n"), 400},
        Refused{"OtherEncoding", absl::StrCat(kPost, "Transfer-Encoding: gzip\r\n\r\n"), 501},
        Refused{"TwoEncodings", absl::StrCat(kPost, "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"),
                501},
        Refused{"NegativeLength", absl::StrCat(kPost, "Content-Length: -1\r\n\r\n"), 400},
        Refused{"SpaceBeforeColon", "POST / HTTP/1.1\r\nContent-Length : 5\r\n\r\nhello", 400},
        Refused{"BadChunk", absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 400},
        Refused{"NotHttp", "\x16\x03\x01\x02\r\n\r\n", 400},
        Refused{"LargeBody", absl::StrCat(kPost, "Content-Length: 101\r\n\r\n"), 413},
        Refused{
            "LargeChunks",
            absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n80\r\n", std::string(128, 'x'), "\r\n"),
            413},
        Refused{"ManyHeaders", ManyHeaders(100'000), 431},
        Refused{"EndlessHead", std::string(1 << 16, 'a'), 431}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foredraft
