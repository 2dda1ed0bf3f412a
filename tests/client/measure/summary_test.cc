#include "client/measure/summary.h"

#include <gtest/gtest.h>

namespace foredraft {
namespace {

TEST(Summary, InterpolatesPercentilesAsNumpyDoes) {
  std::vector<double> hundred;
  for (int i = 100; i >= 1; --i) hundred.push_back(i);
  const struct {
    const char* name;
    std::vector<double> values;
    double mean, min, p25, p50, p75, p90, p99, max;
  } kCases[] = {
      {"one", {7}, 7, 7, 7, 7, 7, 7, 7, 7},
      {"two", {20, 10}, 15, 10, 12.5, 15, 17.5, 19, 19.9, 20},
      {"three", {1, 2, 6}, 3, 1, 1.5, 2, 4, 5.2, 5.92, 6},
      // numpy.percentile(range(1, 101), [25, 50, 75, 90, 99])
      {"hundred", hundred, 50.5, 1, 25.75, 50.5, 75.25, 90.1, 99.01, 100},
  };
  for (const auto& one : kCases) {
    const Summary summary = Summarize(one.values);
    EXPECT_EQ(summary.count, static_cast<int64_t>(one.values.size())) << one.name;
    EXPECT_NEAR(summary.mean, one.mean, 1e-9) << one.name;
    EXPECT_EQ(summary.min, one.min) << one.name;
    EXPECT_NEAR(summary.p25, one.p25, 1e-9) << one.name;
    EXPECT_NEAR(summary.p50, one.p50, 1e-9) << one.name;
    EXPECT_NEAR(summary.p75, one.p75, 1e-9) << one.name;
    EXPECT_NEAR(summary.p90, one.p90, 1e-9) << one.name;
    EXPECT_NEAR(summary.p99, one.p99, 1e-9) << one.name;
    EXPECT_EQ(summary.max, one.max) << one.name;
  }
}

TEST(Summary, CountsAWeightAsSoManySamples) {
  const Summary weighted = Summarize({{5, 2}, {1, 3}, {9, 1}});
  const Summary spelled = Summarize(std::vector<double>{1, 1, 1, 5, 5, 9});
  EXPECT_EQ(weighted.count, spelled.count);
  EXPECT_EQ(weighted.mean, spelled.mean);
  EXPECT_EQ(weighted.p50, spelled.p50);
  EXPECT_EQ(weighted.p90, spelled.p90);
  EXPECT_EQ(weighted.p99, spelled.p99);
}

TEST(Summary, IsZeroWithoutSamples) {
  const Summary summary = Summarize(std::vector<double>{});
  EXPECT_EQ(summary.count, 0);
  EXPECT_EQ(summary.p50, 0);
}

}  // namespace
}  // namespace foredraft
