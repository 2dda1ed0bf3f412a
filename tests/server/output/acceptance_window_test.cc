#include "server/output/acceptance_window.h"

#include <gtest/gtest.h>

namespace foredraft {
namespace {

SteadyTime At(int second) { return SteadyTime(std::chrono::seconds(1000 + second)); }

TEST(AcceptanceWindow, ForgetsWhatIsOlderThanAMinute) {
  AcceptanceWindow window;
  EXPECT_EQ(window.Rate(At(0)), 0);
  window.Add(10, 10, At(0));
  window.Add(10, 0, At(30));
  EXPECT_DOUBLE_EQ(window.Rate(At(30)), 0.5);
  EXPECT_DOUBLE_EQ(window.Rate(At(59)), 0.5);
  EXPECT_DOUBLE_EQ(window.Rate(At(60)), 0);
  window.Add(4, 1, At(61));
  EXPECT_DOUBLE_EQ(window.Rate(At(61)), 1.0 / 14);
  EXPECT_DOUBLE_EQ(window.Rate(At(500)), 0);
}

}  // namespace
}  // namespace foredraft
