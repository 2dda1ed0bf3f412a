#include "server/api/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/log_level.h"

namespace foredraft {
namespace {

using testing::ElementsAre;

// A block that was turned off comes back as it was at the start, with the keys of the new file that a reload
// may change.
TEST(Reloader, TurnsConstraintsOffAndOn) {
  Config started;
  started.constraints = ConstraintsConfig{.cache_mib = 64, .threads = 3, .max_live = 9};
  Config next = started;
  Config applied;
  Reloader reloader(
      started, [&next]() -> absl::StatusOr<Config> { return next; },
      [&applied](const Config& config) { applied = config; });
  Metrics metrics(MetricsOptions{.model_name = "m"});

  next.constraints.reset();
  auto report = reloader.Reload(metrics);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->applied_keys, ElementsAre("constraints"));
  EXPECT_FALSE(applied.constraints.has_value());

  next.constraints = ConstraintsConfig{.max_depth = 7, .cache_mib = 64, .threads = 5, .max_live = 9};
  report = reloader.Reload(metrics);
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_THAT(report->applied_keys, ElementsAre("constraints", "constraints.max_depth"));
  EXPECT_THAT(report->restart_keys, ElementsAre("constraints.threads"));
  const ConstraintsConfig expected = {.max_depth = 7, .cache_mib = 64, .threads = 3, .max_live = 9};
  EXPECT_EQ(applied.constraints, expected);
}

TEST(Reloader, SaysAtDebugWhatChanged) {
  Config started;
  Config next = started;
  next.max_queue_size = 77;
  next.constraints.reset();
  Metrics metrics(MetricsOptions{.model_name = "m"});
  for (const LogLevel level : {LogLevel::kInfo, LogLevel::kDebug}) {
    std::vector<std::string> lines;
    InstallLogSink([&lines](LogLevel, std::string_view line, const LogFields&) { lines.emplace_back(line); });
    Reloader reloader(
        started, [&next]() -> absl::StatusOr<Config> { return next; },
        [level](const Config&) { SetLeastLogLevel(level); });
    EXPECT_TRUE(reloader.Reload(metrics).ok());
    InstallLogSink(nullptr);
    SetLeastLogLevel(LogLevel::kInfo);
    EXPECT_EQ(std::count(lines.begin(), lines.end(), "configuration: max_queue_size: 77, was 1024"),
              level == LogLevel::kDebug ? 1 : 0);
  }
}

}  // namespace
}  // namespace foredraft
