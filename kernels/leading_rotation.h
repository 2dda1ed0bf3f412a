#pragma once

// RoPE on the first values of a row: which of them form a pair. DeepSeek-V3.2's indexer pairs the halves of
// the rotated part, GLM-5's adjacent values.

#include <cstdint>

namespace foredraft {

struct LeadingRotation {
  int32_t rope_dim;
  bool interleaved;

  struct Pair {
    int32_t low;    // index of the value that the cosine's row starts with
    int32_t high;   // and of its partner
    int32_t angle;  // of cos_sin [rope_dim / 2, 2]
  };
  // The pair of element i < rope_dim.
  constexpr Pair PairOf(int32_t i) const {
    if (interleaved) return {i & ~1, i | 1, i / 2};
    const int32_t half = rope_dim / 2;
    const int32_t angle = i < half ? i : i - half;
    return {angle, angle + half, angle};
  }
};

}  // namespace foredraft
