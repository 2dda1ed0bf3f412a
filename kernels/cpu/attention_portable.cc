// Scores and weighted sums of attention for any machine.

#include <bit>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

float Bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

constexpr int kLanes = 8;

void AddDot(const uint16_t* a, const uint16_t* b, int32_t len, float* lanes) {
  int32_t i = 0;
  for (; i + kLanes <= len; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += Bf16(a[i + lane]) * Bf16(b[i + lane]);
  }
  for (int lane = 0; i + lane < len; ++lane) lanes[lane] += Bf16(a[i + lane]) * Bf16(b[i + lane]);
}

}  // namespace

void AttentionScoresPortable(const AttentionScoresArgs& args) {
  for (int32_t q = 0; q < args.queries; ++q) {
    for (int32_t t = 0; t < args.count; ++t) {
      float lanes[kLanes] = {};
      AddDot(args.a[q], args.a_rows[t], args.a_len, lanes);
      AddDot(args.b[q], args.b_rows[t], args.b_len, lanes);
      args.scores[q * args.stride + t] =
          ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
    }
  }
}

void WeightedSumPortable(const WeightedSumArgs& args) {
  for (int32_t q = 0; q < args.queries; ++q) {
    float* out = args.out[q];
    for (int32_t i = 0; i < args.len; ++i) out[i] = 0.0f;
    for (int32_t t = 0; t < args.count; ++t) {
      const float weight = args.weights[q * args.stride + t];
      const uint16_t* row = args.rows[t];
      for (int32_t i = 0; i < args.len; ++i) out[i] += weight * Bf16(row[i]);
    }
  }
}

}  // namespace foredraft
