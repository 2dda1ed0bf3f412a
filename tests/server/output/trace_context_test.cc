#include "server/output/trace_context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kParent[] = "00f067aa0ba902b7";

TEST(TraceContext, IsASpanOfItsOwnBelowTheClients) {
  const auto trace = ReadTraceParent(absl::StrCat("00-", kTrace, "-", kParent, "-01"));
  ASSERT_TRUE(trace.has_value());
  EXPECT_EQ(trace->trace_id, kTrace);
  EXPECT_EQ(trace->parent_id, kParent);
  EXPECT_THAT(trace->span_id, testing::MatchesRegex("[0-9a-f]{16}"));
  EXPECT_NE(trace->span_id, kParent);
  EXPECT_EQ(trace->Header(), absl::StrCat("00-", kTrace, "-", trace->span_id, "-01"));
  EXPECT_NE(ReadTraceParent(trace->Header())->span_id, trace->span_id);
}

TEST(TraceContext, KeepsTheSampledFlagAlone) {
  for (const auto& [flags, expected] :
       {std::pair("00", "-00"), {"01", "-01"}, {"fe", "-00"}, {"ff", "-01"}}) {
    const auto trace = ReadTraceParent(absl::StrCat("00-", kTrace, "-", kParent, "-", flags));
    EXPECT_TRUE(trace->Header().ends_with(expected)) << flags;
  }
}

TEST(TraceContext, ReadsLaterVersionsAsFarAsTheFirstGoes) {
  const std::string rest = absl::StrCat(kTrace, "-", kParent, "-01");
  EXPECT_TRUE(ReadTraceParent("01-" + rest).has_value());
  EXPECT_TRUE(ReadTraceParent("cc-" + rest + "-what-comes-later").has_value());
  EXPECT_FALSE(ReadTraceParent("cc-" + rest + ".later").has_value());
  EXPECT_FALSE(ReadTraceParent("00-" + rest + "-later").has_value());
  EXPECT_FALSE(ReadTraceParent("ff-" + rest).has_value());
}

TEST(TraceContext, MalformedIsNone) {
  const std::string good = absl::StrCat("00-", kTrace, "-", kParent, "-01");
  for (size_t size = 0; size < good.size(); ++size)
    EXPECT_FALSE(ReadTraceParent(good.substr(0, size)).has_value());
  for (size_t i = 0; i < good.size(); ++i) {
    for (const char wrong : {'G', 'A', '\n', '\0', ' '}) {
      std::string bad = good;
      bad[i] = wrong;
      EXPECT_FALSE(ReadTraceParent(bad).has_value()) << i;
    }
  }
  EXPECT_FALSE(ReadTraceParent(absl::StrCat("00-", std::string(32, '0'), "-", kParent, "-01")).has_value());
  EXPECT_FALSE(ReadTraceParent(absl::StrCat("00-", kTrace, "-", std::string(16, '0'), "-01")).has_value());
}

}  // namespace
}  // namespace foredraft
