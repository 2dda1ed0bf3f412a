// Attention over packed tiles for any machine: plain loops that compilers vectorise. The AVX2 path uses this
// softmax, too.

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/cpu/sample/argmax.h"
#include "kernels/dtype.h"

namespace foredraft {
namespace {

float Even(Bf16Pair pair) { return std::bit_cast<float>(pair << 16); }
float Odd(Bf16Pair pair) { return std::bit_cast<float>(pair & 0xffff0000u); }

Bf16Pair PairOf(uint16_t even, uint16_t odd) { return even | static_cast<Bf16Pair>(odd) << 16; }

constexpr int32_t kPairs = kTileLen / 2;

// The scores of one query become its weights. Returns their sum.
[[gnu::always_inline]] inline float ToWeights(float* scores, int32_t count, float max, Bf16Pair* weights) {
  for (int32_t t = 0; t < count; ++t) scores[t] = Exp(scores[t] - max);
  const float sum = LaneSum(count, [scores](int64_t t) { return scores[t]; });
  for (int32_t t = count; t < kTileLen; ++t) scores[t] = 0.0f;
  uint16_t rounded[kTileLen];
  for (int32_t t = 0; t < kTileLen; ++t) rounded[t] = ToBf16(scores[t]).bits;
  std::memcpy(weights, rounded, sizeof rounded);
  return sum;
}
static_assert(std::endian::native == std::endian::little, "adjacent weights are a pair as they are");

// Most tiles have kTileLen positions; this constant leaves the loops without remainders.
FOREDRAFT_WIDE float Weights(float* scores, int32_t count, float max, Bf16Pair* weights) {
  return count == kTileLen ? ToWeights(scores, kTileLen, max, weights)
                           : ToWeights(scores, count, max, weights);
}

[[gnu::always_inline]] inline float LargestScaled(float* scores, int32_t count, float scale) {
  for (int32_t t = 0; t < count; ++t) scores[t] *= scale;
  return cpu::LargestOf(scores, count);
}

FOREDRAFT_WIDE float ScaledMax(float* scores, int32_t count, float scale) {
  return count == kTileLen ? LargestScaled(scores, kTileLen, scale) : LargestScaled(scores, count, scale);
}

constexpr int kLanes = 16;

// Adds `pairs` pairs of one query to kLanes accumulators.
void AddPairs(const Bf16Pair* factors, const Bf16Pair* rows, int64_t stride, int32_t pairs, float* sums) {
  for (int32_t pair = 0; pair < pairs; ++pair, rows += stride) {
    const float even = Even(factors[pair]);
    const float odd = Odd(factors[pair]);
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += even * Even(rows[lane]);
    for (int lane = 0; lane < kLanes; ++lane) sums[lane] += odd * Odd(rows[lane]);
  }
}

}  // namespace

void PackKeysPortable(const PackKeysArgs& args) {
  for (int32_t t = 0; t < args.count; ++t) {
    const uint16_t* row = args.rows[t];
    int32_t pair = 0;
    for (; 2 * pair + 1 < args.len; ++pair) {
      args.keys[pair * kTileLen + t] = PairOf(row[2 * pair], row[2 * pair + 1]);
    }
    if (args.len % 2 != 0) args.keys[pair * kTileLen + t] = PairOf(row[args.len - 1], 0);
  }
}

void PackValuesPortable(const PackValuesArgs& args) {
  for (int32_t pair = 0; 2 * pair < args.count; ++pair) {
    const uint16_t* even = args.rows[2 * pair];
    const uint16_t* odd = args.rows[2 * pair + 1];
    Bf16Pair* out = args.values + static_cast<int64_t>(pair) * args.width;
    for (int32_t i = 0; i < args.len; ++i) out[i] = PairOf(even[i], odd[i]);
    for (int32_t i = args.len; i < args.width; ++i) out[i] = 0;
  }
}

void TileScoresPortable(const TileScoresArgs& args) {
  for (int32_t q = 0; q < args.query_count; ++q) {
    for (int32_t t = 0; t < args.counts[q]; t += kLanes) {
      float sums[kLanes] = {};
      AddPairs(args.queries + static_cast<int64_t>(q) * args.pairs, args.keys + t, kTileLen, args.pairs,
               sums);
      std::memcpy(args.scores + q * kTileLen + t, sums, sizeof(sums));
    }
  }
}

void TileSoftmaxPortable(const TileSoftmaxArgs& args) {
  for (int32_t q = 0; q < args.query_count; ++q) {
    float* scores = args.scores + q * kTileLen;
    const float largest = ScaledMax(scores, args.counts[q], args.scale);
    const float max = args.first ? largest : std::max(args.max[q], largest);
    const float sum = Weights(scores, args.counts[q], max, args.weights + q * kPairs);
    args.keep[q] = args.first ? 0.0f : Exp(args.max[q] - max);
    args.sum[q] = args.first ? sum : args.sum[q] * args.keep[q] + sum;
    args.max[q] = max;
  }
}

void TileSumPortable(const TileSumArgs& args) {
  for (int32_t q = 0; q < args.query_count; ++q) {
    const Bf16Pair* weights = args.weights + q * kPairs;
    const int32_t whole = args.counts[q] / 2;
    for (int32_t i = 0; i < args.width; i += kLanes) {
      float* acc = args.acc + static_cast<int64_t>(q) * args.stride + i;
      float sums[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) sums[lane] = acc[lane] * args.keep[q];
      AddPairs(weights, args.values + i, args.stride, whole, sums);
      if (args.counts[q] % 2 != 0) {  // the other position of the last pair is masked: 0 * NaN is NaN
        const Bf16Pair* row = args.values + static_cast<int64_t>(whole) * args.stride + i;
        for (int lane = 0; lane < kLanes; ++lane) sums[lane] += Even(weights[whole]) * Even(row[lane]);
      }
      std::memcpy(acc, sums, sizeof(sums));
    }
  }
}

}  // namespace foredraft
