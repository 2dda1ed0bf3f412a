// Sums side by side have the bits of one sum after another: a row's bits do not depend on how keys are
// grouped.

#include "kernels/cpu/common/lane_sums.h"

#include <vector>

#include "kernels/cpu/common/vector_math.h"
#include "tests/ops/op_harness.h"

namespace foredraft {
namespace {

constexpr int kSums = 4;

TEST(LaneSums, HaveTheBitsOfOneSum) {
  Noise noise(91);
  for (const int count : {1, 15, 16, 17, 64, 100}) {
    SCOPED_TRACE(count);
    const int stride = count + 3;
    const std::vector<float> x = noise.Floats(count, 2.0f), y = noise.Floats(kSums * stride, 2.0f);
    float dots[kSums], alone;
    DotProducts<kSums>(x.data(), y.data(), stride, count, dots);
    for (int s = 0; s < kSums; ++s) {
      const float* const row = y.data() + s * stride;
      EXPECT_EQ(dots[s], LaneSum(count, [&](int64_t i) { return x[i] * row[i]; }));
      DotProducts<1>(x.data(), row, stride, count, &alone);
      EXPECT_EQ(dots[s], alone);
    }
  }
}

TEST(LaneSums, AddInTheOrderOfTheRows) {
  Noise noise(92);
  for (const int count : {1, 16, 37}) {
    SCOPED_TRACE(count);
    const std::vector<float> weights = noise.Floats(kSums, 2.0f), y = noise.Floats(kSums * count, 2.0f);
    std::vector<float> together = noise.Floats(count, 2.0f), alone = together;
    AddScaled<kSums>(weights.data(), y.data(), count, count, together.data());
    for (int s = 0; s < kSums; ++s) {
      for (int i = 0; i < count; ++i) alone[i] += weights[s] * y[s * count + i];
    }
    EXPECT_EQ(together, alone);
  }
}

}  // namespace
}  // namespace foredraft
