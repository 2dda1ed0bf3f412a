#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/row_masks.h"

namespace foredraft::cpu {

// The largest value; NaN is skipped, -infinity if all are NaN. Always inlined, to be compiled for the
// caller's register width (vector_math.h). Written in vectors of four, which all machines' registers hold:
// compilers do not vectorise the maximum of floats.
[[gnu::always_inline]] inline float LargestOf(const float* x, int32_t count) {
  typedef float Four __attribute__((vector_size(4 * sizeof(float))));
  constexpr int32_t kVectors = 4, kLanes = 4 * kVectors;
  Four lanes[kVectors];
  for (Four& lane : lanes) lane = Four{} - std::numeric_limits<float>::infinity();
  int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int32_t v = 0; v < kVectors; ++v) {
      Four values;
      std::memcpy(&values, x + i + 4 * v, sizeof values);
      lanes[v] = values > lanes[v] ? values : lanes[v];
    }
  }
  for (; i < count; ++i) lanes[0][0] = x[i] > lanes[0][0] ? x[i] : lanes[0][0];
  lanes[0] = lanes[2] > lanes[0] ? lanes[2] : lanes[0];
  lanes[1] = lanes[3] > lanes[1] ? lanes[3] : lanes[1];
  lanes[0] = lanes[1] > lanes[0] ? lanes[1] : lanes[0];
  const Four last = lanes[0];
  const float even = last[2] > last[0] ? last[2] : last[0], odd = last[3] > last[1] ? last[3] : last[1];
  return odd > even ? odd : even;
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

// The lowest index of the largest value that the mask allows; -1 if all those are NaN or -infinity.
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
