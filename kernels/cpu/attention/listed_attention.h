#pragma once

// Attention of a row over a list of keys, which are also the values, with one key for all heads and a sink
// per head: what the attention ops without latents share. These ops share parameter names, and differ in
// which keys a row attends. A row's bits depend on its own list alone.

#include <algorithm>

#include "kernels/cpu/attention/kv_row_math.h"
#include "kernels/cpu/common/lane_sums.h"
#include "kernels/cpu/common/row_math.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/device/cpu_stream.h"
#include "kernels/ops/attention.h"

namespace foredraft::cpu {

inline constexpr int32_t kListSplit = 32;     // a softmax step's keys, widened to FP32 once for several heads
inline constexpr int32_t kMaxListHeads = 32;  // most heads per item
// Fewest heads per item, unless the model has fewer: every item widens its keys.
inline constexpr int32_t kMinListHeads = 4;

// The softmax of one head over the splits so far. It starts with the sink: weight 1 in the sum, no value.
struct ListHead {
  float max;
  float sum;
  float* acc;  // [d]
};

// Keys of one step of the softmax, in FP32.
struct ListSplit {
  VectorRows keys;
  int32_t count;  // 1..kListSplit
  int64_t width;
  float scale;
};

// Adds a split to the softmax of each head. q: `head_count` queries.
void AddKeys(const VectorRows& q, const ListSplit& split, int32_t head_count, ListHead* heads);
void DivideBySum(const ListHead& head, int64_t width, float* out);

// Floats from one key, query or sum to the next: if they were a multiple of 2 KB apart, all their values of a
// column would lie in two sets of the first-level cache.
constexpr int64_t ListStride(int64_t width) {
  return (width + kSumLanes - 1) / kSumLanes * kSumLanes + kSumLanes;
}

// The floats that AttendHeads needs.
constexpr int64_t ListMemory(int64_t width) { return (kListSplit + 2 * kMaxListHeads) * ListStride(width); }

// Keys(p, row) has count() and operator[], the keys' rows in order. `memory`: [ListMemory(d)].
template <class Keys, class Params>
void AttendHeads(const IsaKernels& isa, const Params& p, int64_t row, int32_t first_head, int32_t head_count,
                 float* memory) {
  const int64_t width = p.layout.width(), stride = ListStride(width);
  const Keys attended(p, row);
  float* const keys = memory;
  float* const queries = keys + kListSplit * stride;
  ListHead heads[kMaxListHeads];
  for (int32_t h = 0; h < head_count; ++h) {
    heads[h] = {p.sinks[first_head + h], 1.0f, queries + (kMaxListHeads + h) * stride};
    std::fill_n(heads[h].acc, width, 0.0f);
    ToFloats(p.q.row(row) + (first_head + h) * width, width, queries + h * stride);
  }
  for (int32_t begin = 0; begin < attended.count(); begin += kListSplit) {
    const int32_t count = std::min(kListSplit, attended.count() - begin);
    for (int32_t t = 0; t < count; ++t) WidenKeyRow(isa, attended[begin + t], p.layout, keys + t * stride);
    AddKeys({queries, stride}, {{keys, stride}, count, width, p.scale}, head_count, heads);
  }
  for (int32_t h = 0; h < head_count; ++h) {
    DivideBySum(heads[h], width, p.out.row(row) + (first_head + h) * width);
  }
}

// key_count: keys of a row, about.
template <class Keys, class Params>
void AttendLists(const CpuContext& context, const Params& p, int32_t key_count) {
  const int64_t width = p.layout.width();
  // Heads of one item: as many as leave every thread two items. A head's bits do not depend on this.
  const int64_t wanted = int64_t{p.index.rows} * p.head_count / (2 * context.pool.thread_count());
  const auto block = static_cast<int32_t>(std::clamp<int64_t>(wanted, kMinListHeads, kMaxListHeads));
  const int64_t blocks = (p.head_count + block - 1) / block;
  const int64_t cost = int64_t{2} * key_count * block * width;
  context.pool.ParallelFor(p.index.rows * blocks, cost, [&](int64_t begin, int64_t end) {
    float* const memory = ThreadScratch<float>(ListMemory(width));
    for (int64_t item = begin; item < end; ++item) {
      const int64_t row = item / blocks;
      if (p.index.slots[row] < 0) continue;
      const int32_t first = static_cast<int32_t>(item % blocks) * block;
      AttendHeads<Keys>(context.isa, p, row, first, std::min(block, p.head_count - first), memory);
    }
  });
}

}  // namespace foredraft::cpu
