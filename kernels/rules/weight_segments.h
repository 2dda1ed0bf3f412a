#pragma once

// The canonical segments of a weight's inputs. The product with a weight that is cut along k over ranks is a
// sum, and its bits must not depend on the number of ranks. So such a weight [n, k] has S segments of k / S
// inputs on any number of ranks, also on one. For each output, a segment has the value that the weight's
// kernel computes for a weight of these inputs alone, without splits: a chain from zero, with the segment's
// scales, tensor scale included. The output is the sum of the S values by the fixed binary tree,
// ((0+1)+(2+3))+((4+5)+(6+7)), each addition rounded to FP32; then the bias is added. A rank that has S / T
// adjacent segments computes their subtree.

#include <cstdint>

namespace foredraft {

inline constexpr int32_t kMaxSegments = 8;

// How many segments a whole weight with k inputs has: each has a multiple of `unit` inputs, so that it has
// whole groups and blocks of scales. 1: the weight stays one chain.
constexpr int32_t SegmentCount(int32_t k, int32_t unit) {
  for (int32_t segments = kMaxSegments; segments > 1; segments /= 2) {
    if (k % (segments * unit) == 0) return segments;
  }
  return 1;
}

}  // namespace foredraft
