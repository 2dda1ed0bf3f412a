#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/row_masks.h"

namespace foredraft::cpu {

// The largest value; NaN is skipped, -infinity if all are NaN. Always inlined, to be compiled for the
// caller's register width (vector_math.h).
[[gnu::always_inline]] inline float LargestOf(const float* x, int32_t count) {
  constexpr int kLanes = 16;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  for (; i < count; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
    }
  }
  return lanes[0];
}

// The lowest index of `value`; 0 if there is none.
[[gnu::always_inline]] inline int32_t FirstOf(const float* x, int32_t count, float value) {
  for (int32_t i = 0; i < count; ++i) {
    if (x[i] == value) return i;
  }
  return 0;
}

// The lowest index of the largest value; 0 if all are NaN.
[[gnu::always_inline]] inline int32_t ArgmaxOf(const float* x, int32_t count) {
  return FirstOf(x, count, LargestOf(x, count));
}

// The lowest index of the largest value of those that the mask allows; -1 if these are NaN and -infinity.
inline int32_t MaskedArgmaxOf(const float* x, int32_t count, const uint32_t* mask) {
  int32_t found = -1;
  float largest = -std::numeric_limits<float>::infinity();
  for (int32_t word = 0; word < MaskWordCount(count); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      const int32_t i = 32 * word + std::countr_zero(bits);
      if (i >= count || !(x[i] > largest)) continue;
      largest = x[i];
      found = i;
    }
  }
  return found;
}

// False where no token can be chosen from a row of logits (kNoToken). `largest`: LargestOf the row.
[[gnu::always_inline]] inline bool IsUsable(const float* x, int32_t count, float largest) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  int32_t unordered = 0;
  for (int32_t i = 0; i < count; ++i) unordered |= x[i] != x[i] ? 1 : 0;
  return unordered == 0 && largest > -kInfinity && largest < kInfinity;
}

}  // namespace foredraft::cpu
