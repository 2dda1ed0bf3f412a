// Sums side by side have the bits of one sum after another, with registers of any width: a row's bits depend
// neither on how keys are grouped nor on the machine. This file is compiled for the baseline, where registers
// of 8 and 16 floats are several of the machine's.

#include "kernels/cpu/common/lane_sums.h"

#include <vector>

#include "kernels/cpu/common/vector_math.h"
#include "tests/ops/op_harness.h"

namespace foredraft {
namespace {

constexpr int kRows = 3, kSums = 2;

template <class Width>
class LaneSumsOf : public testing::Test {};

template <int kFloats>
struct Width {
  static constexpr int value = kFloats;
};
using Widths = testing::Types<Width<4>, Width<8>, Width<16>>;
TYPED_TEST_SUITE(LaneSumsOf, Widths);

TYPED_TEST(LaneSumsOf, DotProductsHaveTheBitsOfOneSum) {
  Noise noise(91);
  for (const int count : {1, 15, 16, 17, 64, 100}) {
    SCOPED_TRACE(count);
    constexpr int kStride = kSums + 1;
    const int x_stride = count + 5, y_stride = count + 3;
    const std::vector<float> x = noise.Floats(kRows * x_stride, 2.0f),
                             y = noise.Floats(kSums * y_stride, 2.0f);
    float dots[kRows * kStride];
    DotProducts<TypeParam::value, kRows, kSums>({x.data(), x_stride}, {y.data(), y_stride}, count, dots,
                                                kStride);
    for (int row = 0; row < kRows; ++row) {
      for (int s = 0; s < kSums; ++s) {
        const float* const a = x.data() + row * x_stride;
        const float* const b = y.data() + s * y_stride;
        const float alone = LaneSum(count, [&](int64_t i) { return a[i] * b[i]; });
        EXPECT_EQ(dots[row * kStride + s], alone) << row << ", " << s;
      }
    }
  }
}

TYPED_TEST(LaneSumsOf, WeightedRowsAreAddedInTheirOrder) {
  Noise noise(92);
  constexpr int kTerms = 5;
  for (const int count : {1, 16, 37, 80}) {
    SCOPED_TRACE(count);
    constexpr int kWeightStride = kTerms + 2;
    const int y_stride = count + 3;
    const std::vector<float> weights = noise.Floats(kRows * kWeightStride, 2.0f),
                             y = noise.Floats(kTerms * y_stride, 2.0f), keep = noise.Floats(kRows);
    std::vector<float> together = noise.Floats(kRows * count, 2.0f), alone = together;
    float* const rows[kRows] = {together.data(), together.data() + count, together.data() + 2 * count};
    AddWeighted<TypeParam::value, kRows>(
        {weights.data(), kWeightStride, keep.data(), {y.data(), y_stride}, kTerms, count}, rows);
    for (int row = 0; row < kRows; ++row) {
      for (int i = 0; i < count; ++i) {
        float& sum = alone[row * count + i];
        sum *= keep[row];
        for (int t = 0; t < kTerms; ++t) sum += weights[row * kWeightStride + t] * y[t * y_stride + i];
      }
    }
    EXPECT_EQ(together, alone);
  }
}

struct RegisterWidth {
  template <int kFloats>
  [[gnu::always_inline]] static void Run(int* floats) {
    *floats = kFloats;
  }
};

TEST(RunInRegisters, TakesTheWidestOfTheMachine) {
  int floats = 0;
  RunInRegisters<RegisterWidth>(&floats);
  EXPECT_EQ(floats, RegisterFloats());
  EXPECT_TRUE(floats == 4 || floats == 8 || floats == 16) << floats;
}

}  // namespace
}  // namespace foredraft
