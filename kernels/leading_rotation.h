#pragma once

// Which of a row's first values RoPE rotates as a pair. In the rotated part DeepSeek-V3.2's indexer pairs
// each value of the first half with one of the second; GLM-5's indexer pairs adjacent values.

#include <cstdint>

namespace foredraft {

struct LeadingRotation {
  int32_t rope_dim;
  bool interleaved;

  struct Pair {
    int32_t low;    // index of x in the pair (x cos - y sin, x sin + y cos)
    int32_t high;   // index of y
    int32_t angle;  // row of cos_sin [rope_dim / 2, 2]
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
