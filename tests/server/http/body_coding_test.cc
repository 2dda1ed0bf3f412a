#include "server/http/body_coding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tests/server/http/http_client.h"
#include "tests/server/resident_memory.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

int64_t PeakBytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

HttpRequest WithCodings(const std::vector<std::string>& values) {
  HttpRequest request;
  for (const std::string& value : values) request.headers.emplace_back("content-encoding", value);
  return request;
}

TEST(BodyCoding, IsTheOneThatTheHeadNames) {
  EXPECT_EQ(CodingOf({}), BodyCoding::kNone);
  EXPECT_EQ(CodingOf(WithCodings({"identity"})), BodyCoding::kNone);
  EXPECT_EQ(CodingOf(WithCodings({"GZip"})), BodyCoding::kGzip);
  EXPECT_EQ(CodingOf(WithCodings({"x-gzip"})), BodyCoding::kGzip);
  EXPECT_EQ(CodingOf(WithCodings({"identity", "deflate"})), BodyCoding::kDeflate);
  for (const auto& values :
       {std::vector<std::string>{"br"}, {""}, {"gzip, deflate"}, {"gzip", "gzip"}, {"identity, gzip"}}) {
    EXPECT_EQ(CodingOf(WithCodings(values)), BodyCoding::kOther) << values.front();
  }
}

class InflateTest : public testing::TestWithParam<BodyCoding> {
 protected:
  std::optional<HttpRefusal> Run(const std::string& body, int64_t max_bytes = 4 << 20) {
    inflated_ = {};
    return Inflate(GetParam(), body, max_bytes, budget_, inflated_);
  }

  static std::string Compressed(const std::string& text) {
    return foredraft::Compressed(text, GetParam() == BodyCoding::kGzip);
  }

  BodyBudget budget_{8 << 20};
  InflatedBody inflated_;
};

TEST_P(InflateTest, GivesWhatWasCompressed) {
  std::string text;
  for (int i = 0; text.size() < (300 << 10); ++i) text += std::to_string(i * 7919);
  for (const size_t size : {size_t{0}, size_t{1}, size_t{64 << 10}, (size_t{64} << 10) + 1, text.size()}) {
    const std::string part = text.substr(0, size);
    const int64_t before = budget_.left();
    ASSERT_FALSE(Run(Compressed(part)).has_value()) << size;
    EXPECT_EQ(inflated_.text, part);
    EXPECT_EQ(inflated_.taken, static_cast<int64_t>(size));
    EXPECT_EQ(before - budget_.left(), static_cast<int64_t>(size));
    budget_.Give(inflated_.taken);
  }
}

TEST_P(InflateTest, RefusesAStreamThatIsNotWhole) {
  const std::string whole = Compressed(R"({"prompt": "größer", "max_tokens": 2})");
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::optional<HttpRefusal> cut = Run(whole.substr(0, size));
    ASSERT_TRUE(cut.has_value()) << size;
    EXPECT_EQ(cut->status, 400);
    EXPECT_THAT(cut->text, HasSubstr("the stream is cut short")) << size;
  }
  EXPECT_THAT(Run(whole + "x")->text, HasSubstr("bytes behind the end of the stream"));
  EXPECT_THAT(Run(whole + whole)->text, HasSubstr("bytes behind the end of the stream"));
  EXPECT_THAT(Run("{\"prompt\": 1}")->text, HasSubstr("no such stream"));
  std::string wrong_sum = whole;
  wrong_sum[whole.size() - (GetParam() == BodyCoding::kGzip ? 8 : 1)] ^= 1;
  EXPECT_THAT(Run(wrong_sum)->text, HasSubstr("no such stream"));
}

TEST_P(InflateTest, StopsAtTheLimitAndAtTheBudget) {
  const std::string body = Compressed(std::string(4 << 20, 'a'));
  EXPECT_FALSE(Run(body).has_value());
  budget_.Give(inflated_.taken);
  EXPECT_EQ(Run(body, (4 << 20) - 1)->status, 413);
  EXPECT_LE(inflated_.taken, 4 << 20);
  budget_.Give(inflated_.taken);
  ASSERT_TRUE(budget_.Take(7 << 20));
  EXPECT_EQ(Run(body)->status, 503);
  EXPECT_EQ(inflated_.taken, 1 << 20);
  EXPECT_EQ(budget_.left(), 0);
}

INSTANTIATE_TEST_SUITE_P(Codings, InflateTest, testing::Values(BodyCoding::kGzip, BodyCoding::kDeflate),
                         [](const auto& info) {
                           return info.param == BodyCoding::kGzip ? "Gzip" : "Deflate";
                         });

TEST(Inflate, ABombTakesTheMemoryOfTheLimitAlone) {
  constexpr int64_t kMostBytes = 16 << 20;
  const Bomb bomb = MakeBomb(10 << 10);
  ASSERT_LT(bomb.bytes.size(), size_t{12} << 20) << "stands for 10 GiB";
  int64_t peak = PeakBytes();
  for (const int mib : {1, 16, 17, 64, 1 << 10, 10 << 10}) {
    BodyBudget budget(kMostBytes);
    InflatedBody inflated;
    const auto refusal = Inflate(BodyCoding::kGzip, bomb.OfMib(mib), kMostBytes, budget, inflated);
    ASSERT_TRUE(refusal.has_value());
    EXPECT_EQ(refusal->status, mib <= 16 ? 400 : 413) << mib;
    EXPECT_EQ(inflated.taken, std::min<int64_t>(int64_t{mib} << 20, kMostBytes));
    // A text that grows is copied into twice its memory.
    const int64_t most = mib <= 16 ? 3 * kMostBytes : 1 << 20;
    EXPECT_LT(PeakBytes() - peak, most + kQuarantineBytes) << mib;
    peak = PeakBytes();
  }
}

}  // namespace
}  // namespace foredraft
