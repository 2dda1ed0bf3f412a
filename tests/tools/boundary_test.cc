#include "tools/validate_mtp/boundary.h"

#include <gtest/gtest.h>

namespace foredraft {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

RealBoundary Compared(const std::vector<std::vector<float>>& rows) {
  RealBoundary boundary("name", "[1, 2]");
  for (const std::vector<float>& row : rows) boundary.Add(row, {1, 2}, {1.01, 2.01});
  return boundary;
}

TEST(RealBoundary, IsOkWithinTwiceTheRounding) {
  EXPECT_TRUE(Compared({{1, 2}, {1.015f, 2}}).result().ok());
  EXPECT_FALSE(Compared({{1, 2}, {1.03f, 2}}).result().ok());
}

// A right row behind it does not make up for one.
TEST(RealBoundary, NaNAnywhereFails) {
  for (const auto& rows : std::vector<std::vector<std::vector<float>>>{{{kNan, 2}},
                                                                       {{1, kNan}},
                                                                       {{kNan, 2}, {1, 2}},
                                                                       {{1, 2}, {1, kNan}},
                                                                       {{1, kNan}, {1, 2}, {1.03f, 2}}}) {
    EXPECT_FALSE(Compared(rows).result().ok());
  }
}

// Scores of about 1, of which rounding changes one by 0.01.
Boundary Selected(double gap) {
  SelectionBoundary boundary("name", "[2, 1]");
  boundary.Add(0, {1, 1}, {1, 1});
  boundary.Add(gap, {1, 1}, {1.01, 1});
  return boundary.result();
}

TEST(SelectionBoundary, IsOkWhereRoundingMayChooseOtherwise) {
  EXPECT_TRUE(Selected(0).ok());
  EXPECT_TRUE(Selected(0.039).ok());
  EXPECT_FALSE(Selected(0.041).ok());
}

TEST(SelectionBoundary, FailsWhereASharedListIsAnother) {
  for (const bool equal : {true, false}) {
    SelectionBoundary boundary("name", "[2, 1]");
    boundary.AddShared(true);
    boundary.AddShared(equal);
    EXPECT_EQ(boundary.result().ok(), equal);
  }
}

}  // namespace
}  // namespace foredraft
