#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "client/load/load_run.h"

namespace foredraft {
namespace {

std::vector<double> Times(std::optional<double> rate_per_s, uint64_t seed, int count) {
  Arrivals arrivals(rate_per_s, seed);
  std::vector<double> times;
  for (int i = 0; i < count; ++i, arrivals.Advance()) times.push_back(arrivals.next_s());
  return times;
}

TEST(Arrivals, OfAClosedLoopAreAllAtOnce) { EXPECT_EQ(Times(std::nullopt, 1, 4), std::vector<double>(4, 0)); }

TEST(Arrivals, BeginAtOnceAndFollowTheSeedAlone) {
  EXPECT_EQ(Times(50, 1, 1).front(), 0);
  EXPECT_EQ(Times(50, 1, 100), Times(50, 1, 100));
  EXPECT_NE(Times(50, 1, 100), Times(50, 2, 100));
}

TEST(Arrivals, HaveTheGapsOfAPoissonProcess) {
  constexpr int kCount = 100'000;
  constexpr double kRate = 50;
  const std::vector<double> times = Times(kRate, 7, kCount + 1);
  double sum = 0, squares = 0;
  int over_mean = 0;
  for (int i = 0; i < kCount; ++i) {
    const double gap = (times[i + 1] - times[i]) * kRate;
    ASSERT_GE(gap, 0);
    sum += gap;
    squares += gap * gap;
    over_mean += gap > 1;
  }
  // Exponential with mean 1: deviation 1, P(gap > mean) = 1/e. Bounds: 5 sigma of 100,000 draws.
  EXPECT_NEAR(sum / kCount, 1, 0.016);
  EXPECT_NEAR(squares / kCount, 2, 0.071);
  EXPECT_NEAR(over_mean / static_cast<double>(kCount), std::exp(-1), 0.008);
}

}  // namespace
}  // namespace foredraft
