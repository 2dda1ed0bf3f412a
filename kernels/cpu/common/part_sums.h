#pragma once

// Adds parts of a row by the tree of canonical segments (kernels/rules/weight_segments.h), for tree_sum and
// the ops that read a row in parts. Defined in kernels/cpu/dense/rank_sums.cc.

#include <cstdint>

namespace foredraft::cpu {

// out[i] = the sum of column i of adjacent parts, `stride` floats apart, plus bias[i] unless null.
using SumColumnsFn = void (*)(const float* parts, int64_t stride, const float* bias, int32_t columns,
                              float* out);

// The function for `parts` parts: 1, 2, 4 or 8.
SumColumnsFn SumColumnsOf(int32_t parts);

}  // namespace foredraft::cpu
