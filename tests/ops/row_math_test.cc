#include "kernels/cpu/common/row_math.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/isa.h"

namespace foredraft::cpu {
namespace {

// This file is compiled for the baseline: the clones that the loader chose must give the same bits.
std::vector<float> RandomRow(int count, std::mt19937* random) {
  std::normal_distribution<float> normal(0.0f, 3.0f);
  std::vector<float> row(count);
  for (float& x : row) x = normal(*random);
  return row;
}

void ExpectSameBits(const std::vector<bf16>& got, const std::vector<float>& want) {
  for (size_t i = 0; i < want.size(); ++i) EXPECT_EQ(got[i].bits, ToBf16(want[i]).bits) << "element " << i;
}

TEST(RowMath, HasTheSameBitsAtEveryRegisterWidth) {
  std::mt19937 random(7);
  for (const int count : {1, 2, 15, 16, 17, 31, 64, 100, 513, 1536}) {
    SCOPED_TRACE(std::to_string(count) + " elements");
    const std::vector<float> x = RandomRow(count, &random);
    const std::vector<float> weight = RandomRow(count, &random);
    std::vector<bf16> got(count);
    std::vector<float> want(count);

    RoundToBf16(x.data(), count, got.data());
    ExpectSameBits(got, x);

    ScaleToBf16(x.data(), 0.37f, count, got.data());
    for (int i = 0; i < count; ++i) want[i] = x[i] * 0.37f;
    ExpectSameBits(got, want);

    NormToBf16(x.data(), weight.data(), 1e-6f, count, got.data());
    const float factor = RmsFactor(x.data(), count, 1e-6f);
    for (int i = 0; i < count; ++i) want[i] = weight[i] * (x[i] * factor);
    ExpectSameBits(got, want);
  }
}

TEST(RowMath, SoftmaxHasTheSameBitsAtEveryRegisterWidth) {
  std::mt19937 random(8);
  for (int count = 1; count <= kTileLen; ++count) {
    SCOPED_TRACE(std::to_string(count) + " scores");
    float sum = 0.0f, largest = 0.0f, keep = 0.0f;
    float want_sum = 0.0f, want_largest = 0.0f;
    for (const bool first : {true, false}) {
      std::vector<float> scores = RandomRow(kTileLen, &random);
      std::vector<float> want(scores.begin(), scores.begin() + count);
      std::vector<Bf16Pair> weights(kTileLen / 2);
      TileSoftmaxPortable({weights.data(), &keep, &largest, &sum, scores.data(), &count, 0.25f, 1, first});

      float max = first ? want[0] * 0.25f : want_largest;
      for (float& score : want) max = std::max(max, score *= 0.25f);
      for (float& score : want) score = Exp(score - max);
      const float want_keep = first ? 0.0f : Exp(want_largest - max);
      want_sum = want_sum * want_keep + LaneSum(count, [&](int64_t t) { return want[t]; });
      want_largest = max;
      EXPECT_EQ(keep, want_keep);
      EXPECT_EQ(largest, want_largest);
      EXPECT_EQ(sum, want_sum);
      for (int t = 0; t < count; ++t) {
        EXPECT_EQ(weights[t / 2] >> (16 * (t % 2)) & 0xffff, ToBf16(want[t]).bits) << "weight " << t;
      }
    }
  }
}

}  // namespace
}  // namespace foredraft::cpu
