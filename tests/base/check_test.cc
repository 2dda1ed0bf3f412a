#include "base/check.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/log.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

TEST(CheckDeathTest, SaysWhatFailedAndWhere) {
  const int rank = 3;
  EXPECT_DEATH(CHECK(rank < 0) << "rank " << rank, "CHECK rank < 0 rank 3, .*check_test.cc:");
}

TEST(CheckDeathTest, PrintsBothOperands) { EXPECT_DEATH(CHECK_EQ(2 + 2, 5), "2 \\+ 2 == 5: 4 against 5"); }

TEST(Check, EvaluatesAPassingConditionOnceAndItsTextNever) {
  int conditions = 0;
  int texts = 0;
  CHECK(++conditions > 0) << ++texts;
  CHECK_LE(conditions, 1) << ++texts;
  EXPECT_EQ(conditions, 1);
  EXPECT_EQ(texts, 0);
}

TEST(Log, WritesToTheInstalledSink) {
  std::vector<std::string> lines;
  InstallLogSink([&](LogLevel level, std::string_view line, const LogFields&) {
    if (level == LogLevel::kWarning) lines.emplace_back(line);
  });
  Log(LogLevel::kWarning, "rank %d of %s", 1, "two");
  InstallLogSink(nullptr);
  EXPECT_EQ(lines, std::vector<std::string>{"rank 1 of two"});
}

TEST(Log, FieldsGoWithTheirLine) {
  LogFields seen;
  InstallLogSink([&](LogLevel, std::string_view, const LogFields& fields) { seen = fields; });
  LogLine(LogLevel::kInfo, "2 of 3 blocks", {{"blocks", 2}, {"share", 0.5}, {"state", "open"}});
  InstallLogSink(nullptr);
  ASSERT_EQ(seen.size(), 3U);
  EXPECT_EQ(seen[0].name, "blocks");
  EXPECT_EQ(std::get<int64_t>(seen[0].value), 2);
  EXPECT_EQ(std::get<double>(seen[1].value), 0.5);
  EXPECT_EQ(std::get<std::string>(seen[2].value), "open");
}

absl::StatusOr<int> Half(int value) {
  if (value % 2 != 0) return absl::InvalidArgumentError("odd");
  return value / 2;
}

absl::StatusOr<int> Quarter(int value) {
  ASSIGN_OR_RETURN(const int half, Half(value));
  RETURN_IF_ERROR(Half(half).status());
  return half / 2;
}

TEST(StatusMacros, PassValuesOnAndReturnErrors) {
  EXPECT_EQ(*Quarter(8), 2);
  EXPECT_EQ(Quarter(7).status().message(), "odd");
  EXPECT_EQ(Quarter(6).status().message(), "odd");
}

}  // namespace
}  // namespace foredraft
