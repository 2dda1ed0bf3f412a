#include "server/http/request_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

using Progress = RequestReader::Progress;

constexpr char kPost[] = "POST /x?a=1 HTTP/1.1\r\nHost: h\r\nX-One: 1\r\n";
const HttpLimits kLimits;
constexpr size_t kPostBytes = sizeof(kPost) - 1;
const std::string kChunked = absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n");

std::string Repeat(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

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
  if (outcome.progress == Progress::kRefused) {
    outcome.status = reader.refusal().status;
    outcome.text = reader.refusal().text;
  }
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
        RequestReader reader(kLimits, "ipv4:1.2.3.4:5");
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
  EXPECT_EQ(Feed(absl::StrCat(kPost, "Content-Length: 0\r\n\r\n")).progress, Progress::kWhole);
}

TEST(RequestReader, TakesWhatTheLimitsAllow) {
  EXPECT_EQ(Feed(absl::StrCat(kPost, Repeat("a:\r\n", 98), "\r\n")).progress, Progress::kWhole);
  const std::string rest((16 << 10) - kPostBytes - 7, 'a');
  for (const size_t piece : {1, 8192, 1 << 20}) {
    EXPECT_EQ(Feed(absl::StrCat(kPost, "X: ", rest, "\r\n\r\n"), piece).progress, Progress::kWhole) << piece;
  }
  EXPECT_EQ(Feed(absl::StrCat(kChunked, Repeat("1\r\na\r\n", 20'000), "0\r\n\r\n")).progress,
            Progress::kWhole);
  EXPECT_EQ(Feed(absl::StrCat(kChunked, "1 ;a=\"b c\"\r\na\r\n0\r\nX: y\r\n\r\n")).request.body, "a");
}

// Reads that end a byte behind a line's end made Beast count anew.
TEST(RequestReader, CountsAHeadThatComesInAlignedPieces) {
  RequestReader reader(kLimits, "ipv4:1.2.3.4:5");
  std::string input = absl::StrCat(kPost, "a");
  size_t sent = input.size();
  while (reader.Feed(input) == Progress::kMore) {
    input += ":\r\n" + Repeat("a:\r\n", 7) + "a";
    sent += 32;
    ASSERT_LT(sent, size_t{1} << 20);
  }
  EXPECT_EQ(reader.refusal().status, 431);
  EXPECT_LE(sent, kPostBytes + 98 * 4 + 64);
}

TEST(RequestReader, WhatABodyHoldsIsCounted) {
  RequestReader reader(kLimits, "ipv4:1.2.3.4:5");
  std::string input = absl::StrCat(kChunked, "3\r\nabc\r\n1;", std::string(5000, 'x'));
  EXPECT_EQ(reader.Feed(input), Progress::kHead);
  EXPECT_EQ(reader.Feed(input), Progress::kMore);
  EXPECT_EQ(input, "");
  EXPECT_EQ(reader.body_bytes(), 3 + 2 + 5000);
}

TEST(RequestReader, ReadsATargetInTheAbsoluteForm) {
  struct Case {
    const char* target;
    const char* path;
    const char* host;
  };
  for (const Case& c : {Case{"http://a.example:80/v1/models?x=1", "/v1/models", "a.example:80"},
                        Case{"HTTPS://[::1]:8000/x", "/x", "[::1]:8000"}, Case{"http://a", "/", "a"},
                        Case{"http://a?b", "/", "a"}, Case{"/http://a/b", "/http://a/b", "h"}}) {
    const Outcome read = Feed(absl::StrCat("GET ", c.target, " HTTP/1.1\r\nHost: h\r\n\r\n"));
    ASSERT_EQ(read.progress, Progress::kWhole) << c.target << read.text;
    EXPECT_EQ(read.request.path, c.path);
    EXPECT_EQ(read.request.Header("host"), c.host);
  }
}

TEST(RequestReader, TakesHostsAsNamesAddressesAndPorts) {
  for (const char* host :
       {"localhost", "a-b.example:8000", "127.0.0.1:", "[::1]", "[::ffff:1.2.3.4]:65535", "a_b"}) {
    EXPECT_EQ(Feed(absl::StrCat("GET / HTTP/1.1\r\nHost: ", host, "\r\n\r\n")).progress, Progress::kWhole)
        << host;
  }
}

TEST(RequestReader, SkipsOneEmptyLineBeforeARequest) {
  EXPECT_EQ(Feed("\r\nGET / HTTP/1.0\r\n\r\n").progress, Progress::kWhole);
  EXPECT_EQ(Feed("\r\n\r\nGET / HTTP/1.0\r\n\r\n").status, 400);
}

TEST(RequestReader, ExpectsNothingFromHttp10) {
  for (const bool old : {false, true}) {
    RequestReader reader(kLimits, "ipv4:1.2.3.4:5");
    std::string input = absl::StrCat("POST / HTTP/1.", old ? "0" : "1",
                                     "\r\nHost: h\r\nExpect: 100-Continue\r\nContent-Length: 1\r\n\r\n");
    ASSERT_EQ(reader.Feed(input), Progress::kHead);
    EXPECT_EQ(reader.expects_continue(), !old);
  }
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
        Refused{"ListOfLengths", absl::StrCat(kPost, "Content-Length: 2, 2\r\n\r\nab"), 400},
        Refused{"LengthWithASign", absl::StrCat(kPost, "Content-Length: +2\r\n\r\nab"), 400},
        Refused{"EmptyLength", absl::StrCat(kPost, "Content-Length:\r\n\r\n"), 400},
        Refused{"LengthBeyondAllNumbers", absl::StrCat(kPost, "Content-Length: 92233720368547758070\r\n\r\n"),
                400},
        Refused{"ChunksInHttp10", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400},
        Refused{"SpaceBeforeColon", absl::StrCat(kPost, "Content-Length : 5\r\n\r\nhello"), 400},
        Refused{"FoldedEncoding", absl::StrCat(kPost, "Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n"),
                400},
        Refused{"FoldedLength", absl::StrCat(kPost, "X: a\r\n\tContent-Length: 3\r\n\r\nabc"), 400},
        Refused{"NoHost", "GET / HTTP/1.1\r\n\r\n", 400},
        Refused{"TwoHosts", absl::StrCat(kPost, "Host: h\r\n\r\n"), 400},
        Refused{"EmptyHost", "GET / HTTP/1.1\r\nHost:\r\n\r\n", 400},
        Refused{"HostWithAUser", "GET / HTTP/1.1\r\nHost: a@b\r\n\r\n", 400},
        Refused{"HostWithAPath", "GET / HTTP/1.1\r\nHost: a b/@c\r\n\r\n", 400},
        Refused{"ListOfHosts", "GET / HTTP/1.1\r\nHost: a,b\r\n\r\n", 400},
        Refused{"HostWithALargePort", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", 400},
        Refused{"HostWithTwoPorts", "GET / HTTP/1.1\r\nHost: a:1:2\r\n\r\n", 400},
        Refused{"BracketWithoutEnd", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400},
        Refused{"HostOfHttp10", "GET / HTTP/1.0\r\nHost: a@b\r\n\r\n", 400},
        Refused{"TwoAuthorizations",
                absl::StrCat(kPost, "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n"), 400},
        Refused{"TwoContentTypes",
                absl::StrCat(kPost, "Content-Type: text/plain\r\nContent-Type: application/json\r\n\r\n"),
                400},
        Refused{"UnknownExpect", absl::StrCat(kPost, "Expect: 200-ok\r\nContent-Length: 1\r\n\r\na"), 417},
        Refused{"Fragment", "GET /a#b HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Refused{"OtherScheme", "GET ftp://h/a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Refused{"AbsoluteWithAUser", "GET http://u@h/a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Refused{"AbsoluteWithoutAHost", "GET http:///a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Refused{"TargetWithoutASlash", "GET a HTTP/1.1\r\nHost: h\r\n\r\n", 400},
        Refused{"LinesThatEndWithLf", "GET / HTTP/1.1\nHost: h\n\n", 400},
        Refused{"CrWithinALine", "GET / HTTP/1.1\r\nHost: h\r\nX: a\rContent-Length: 1\r\n\r\n", 400},
        Refused{"LaterVersion", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
        Refused{"NoRequestLine", "hello\r\n", 400},
        Refused{"BadChunk", absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\nzz\r\n"), 400},
        Refused{"NotHttp", "\x16\x03\x01\x02\r\n\r\n", 400},
        Refused{"LargeBody", absl::StrCat(kPost, "Content-Length: 101\r\n\r\n"), 413},
        Refused{
            "LargeChunks",
            absl::StrCat(kPost, "Transfer-Encoding: chunked\r\n\r\n80\r\n", std::string(128, 'x'), "\r\n"),
            413},
        Refused{"ChunkLongerThanItsSize", absl::StrCat(kChunked, "1\r\nab\r\n0\r\n\r\n"), 400},
        Refused{"ChunkWithoutASize", absl::StrCat(kChunked, ";a\r\n"), 400},
        Refused{"ChunkSizeBeyondAllNumbers", absl::StrCat(kChunked, "ffffffffffffffffffffffff\r\n"), 413},
        Refused{"ChunkLineWithLf", absl::StrCat(kChunked, "1\na\r\n0\r\n\r\n"), 400},
        Refused{"SizeAndAnotherWord", absl::StrCat(kChunked, "1 2\r\na\r\n0\r\n\r\n"), 400},
        Refused{"ExtensionWithoutEnd", absl::StrCat(kChunked, "1;", std::string(1 << 20, 'a')), 400},
        Refused{"ManyLongExtensions",
                absl::StrCat(kChunked, Repeat("1;" + std::string(1000, 'a') + "\r\nb\r\n", 50)), 400},
        Refused{"TrailerWithoutEnd", absl::StrCat(kChunked, "0\r\nX: ", std::string(1 << 20, 'a')), 431},
        Refused{"ManyTrailers", absl::StrCat(kChunked, "0\r\n", Repeat("a:\r\n", 101)), 431},
        Refused{"LengthInTheTrailers", absl::StrCat(kChunked, "0\r\nContent-Length: 3\r\n\r\n"), 400},
        Refused{"TrailerThatIsNoField", absl::StrCat(kChunked, "0\r\nGET / HTTP/1.1\r\n\r\n"), 400},
        Refused{"ManyHeaders", ManyHeaders(100'000), 431},
        // Two fields are before them.
        Refused{"AFieldTooMany", absl::StrCat(kPost, Repeat("a:\r\n", 99), "\r\n"), 431},
        Refused{"AByteTooMany",
                absl::StrCat(kPost, "X: ", std::string((16 << 10) - kPostBytes - 6, 'a'), "\r\n\r\n"), 431},
        Refused{"EndlessHead", std::string(1 << 16, 'a'), 431}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace foredraft
