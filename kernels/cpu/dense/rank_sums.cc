// tree_sum and merge_columns make rows again from what the ranks of a tensor group computed apart.
// take_columns reorders columns.

#include <algorithm>
#include <cstring>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/common/part_sums.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int32_t kColumnBlock = 512;

// Adds a column of `count` parts.
template <int count>
[[gnu::always_inline]] inline float AddTree(const float* parts, int64_t stride) {
  if constexpr (count == 1) {
    return *parts;
  } else {
    return AddTree<count / 2>(parts, stride) + AddTree<count / 2>(parts + count / 2 * stride, stride);
  }
}

template <int count>
FOREDRAFT_WIDE void SumColumns(const float* parts, int64_t stride, const float* bias, int32_t columns,
                               float* out) {
  if (bias == nullptr) {
    for (int32_t i = 0; i < columns; ++i) out[i] = AddTree<count>(parts + i, stride);
  } else {
    for (int32_t i = 0; i < columns; ++i) out[i] = AddTree<count>(parts + i, stride) + bias[i];
  }
}

}  // namespace

SumColumnsFn SumColumnsOf(int32_t parts) {
  CHECK(parts == 1 || parts == 2 || parts == 4 || parts == 8) << parts;
  return parts == 1 ? SumColumns<1> : parts == 2 ? SumColumns<2> : parts == 4 ? SumColumns<4> : SumColumns<8>;
}

void TreeSum(const CpuContext& context, const TreeSumParams& p) {
  const auto sum = SumColumnsOf(p.part_count);
  const int64_t blocks = (p.out.cols + kColumnBlock - 1) / kColumnBlock;
  context.pool.ParallelFor(p.out.rows * blocks, int64_t{kColumnBlock} * p.part_count,
                           [&](int64_t begin, int64_t end) {
                             for (int64_t i = begin; i < end; ++i) {
                               const int64_t r = i / blocks;
                               const auto first = static_cast<int32_t>(i % blocks) * kColumnBlock;
                               sum(p.parts.row(r) + first, p.parts.stride * p.out.rows,
                                   p.bias == nullptr ? nullptr : p.bias + first,
                                   std::min(kColumnBlock, p.out.cols - first), p.out.row(r) + first);
                             }
                           });
}

void MergeColumns(const CpuContext& context, const MergeColumnsParams& p) {
  context.pool.ParallelFor(p.out.rows, p.out.cols / 4, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int64_t slice = 0;
      for (int32_t first = 0; first < p.out.cols; first += p.parts.cols, ++slice) {
        const auto count = static_cast<size_t>(std::min(p.parts.cols, p.out.cols - first));
        std::memcpy(p.out.row(r) + first, p.parts.row(slice * p.out.rows + r), count * sizeof(float));
      }
    }
  });
}

void TakeColumns(const CpuContext& context, const TakeColumnsParams& p) {
  context.pool.ParallelFor(p.out.rows, p.out.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      for (int32_t c = 0; c < p.out.cols; ++c) {
        const int32_t column = p.index[c];
        p.out.row(r)[c] = column < 0 ? -std::numeric_limits<float>::infinity() : p.x.row(r)[column];
      }
    }
  });
}

}  // namespace foredraft::cpu
