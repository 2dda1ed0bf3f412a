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

constexpr int kRows = 3;

TEST(LaneSums, OfSeveralRowsHaveTheBitsOfEachAlone) {
  Noise noise(93);
  for (const int count : {1, 15, 16, 17, 64, 100}) {
    SCOPED_TRACE(count);
    constexpr int kStride = kSums + 1;
    const std::vector<float> x = noise.Floats(kRows * count, 2.0f), y = noise.Floats(kSums * count, 2.0f);
    float dots[kRows * kStride], alone[kSums];
    DotProductsOfRows<kRows>(x.data(), y.data(), count, dots, kStride);
    for (int row = 0; row < kRows; ++row) {
      DotProducts<kSums>(x.data() + row * count, y.data(), count, count, alone);
      for (int s = 0; s < kSums; ++s) EXPECT_EQ(dots[row * kStride + s], alone[s]) << row << ", " << s;
    }
  }
}

TEST(LaneSums, AddInTheOrderOfTheRows) {
  Noise noise(92);
  for (const int count : {1, 16, 37}) {
    SCOPED_TRACE(count);
    constexpr int kStride = kSums + 2;
    const std::vector<float> weights = noise.Floats(kRows * kStride, 2.0f),
                             y = noise.Floats(kSums * count, 2.0f);
    std::vector<float> together = noise.Floats(kRows * count, 2.0f), alone = together;
    float* const rows[kRows] = {together.data(), together.data() + count, together.data() + 2 * count};
    AddScaled<kSums, kRows>(weights.data(), kStride, y.data(), count, rows);
    for (int row = 0; row < kRows; ++row) {
      for (int s = 0; s < kSums; ++s) {
        for (int i = 0; i < count; ++i)
          alone[row * count + i] += weights[row * kStride + s] * y[s * count + i];
      }
    }
    EXPECT_EQ(together, alone);
  }
}

}  // namespace
}  // namespace foredraft
