#ifndef FOREDRAFT_KERNELS_CPU_ATTEND_H_
#define FOREDRAFT_KERNELS_CPU_ATTEND_H_

// Softmax attention of queries that share their keys and values: the core of mla_decode (the heads of a row)
// and mla_prefill (the rows of a head).
//
// The KV axis is cut into splits of 64 positions counted from position 0 of the sequence. Each split has its
// own softmax; the splits are combined in order. So a query's bits depend on the query and the positions it
// attends, not on how the call was divided into blocks or chunks.

#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>

#include "base/check.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/row_math.h"
#include "kernels/cpu/scratch.h"
#include "kernels/dtype.h"

namespace foredraft::cpu {

inline constexpr int32_t kSplitLen = 64;
inline constexpr int32_t kCacheLine = 32;  // BF16 values

// A query in two parts, like the keys: latent | rope, or nope | rope.
struct Query {
  const bf16* a;
  const bf16* b;
  bf16* out;               // [value_len]
  int32_t last_position;   // inclusive
  float* state = nullptr;  // [value_len + 2]: outputs, max, sum between windows; null with a single window
};

struct AttendShape {
  int32_t a_len;
  int32_t b_len;
  int32_t value_len;
  int32_t first_position;
  float scale;
  bool prefetch = false;  // for keys that are also the values and not yet in the CPU caches
  // The window of positions whose keys are there: [window_begin, window_end). It begins at first_position or
  // at a split's border.
  int32_t window_begin = first_position;
  int32_t window_end = std::numeric_limits<int32_t>::max();
};

// The key and value of one position.
struct KeyRows {
  const bf16* a;
  const bf16* b;
  const bf16* value;
};

// The online softmax of one query over the splits so far.
struct SoftmaxState {
  float max = 0.0f;
  float sum = 0.0f;
  float* acc = nullptr;      // [value_len]
  float* partial = nullptr;  // [value_len], of one split
};

struct SplitSums {
  float max;
  float sum;
};
// Turns scores[0, count) of a split into weights; returns the largest scaled score and the sum of the
// weights.
SplitSums SoftmaxSplit(float* scores, int32_t count, float scale);
// Adds state.partial, the weighted values of a split.
void MergeSplit(const SplitSums& split, int32_t value_len, SoftmaxState& state);

// One split: keys and values of [begin, begin + count).
struct Split {
  int32_t begin;
  int32_t count;
  const uint16_t* a_rows[kSplitLen];
  const uint16_t* b_rows[kSplitLen];
  const uint16_t* value_rows[kSplitLen];
};

// Each query attends the split's positions up to its last_position; at least one.
void AttendSplit(const IsaKernels& isa, const AttendShape& shape, const Query* queries, int32_t query_count,
                 const Split& split, SoftmaxState* states);

// Fills `split` with the rows of positions [begin, last_position], at most to the split's end.
template <class Locate>
void FindSplit(const AttendShape& shape, int32_t begin, int32_t last_position, const Locate& locate,
               Split& split) {
  split.begin = begin;
  split.count = std::min(last_position + 1, (begin / kSplitLen + 1) * kSplitLen) - begin;
  for (int32_t t = 0; t < split.count; ++t) {
    const KeyRows rows = locate(begin + t);
    split.a_rows[t] = &rows.a->bits;
    split.b_rows[t] = &rows.b->bits;
    split.value_rows[t] = &rows.value->bits;
    if (!shape.prefetch) continue;
    for (int32_t i = 0; i < shape.a_len; i += kCacheLine) __builtin_prefetch(rows.a + i, 0, 2);
    for (int32_t i = 0; i < shape.b_len; i += kCacheLine) __builtin_prefetch(rows.b + i, 0, 2);
  }
}

// locate(position) -> KeyRows. Queries are in order of last_position, and each attends at least one position
// of the window. A query that attends positions past the window keeps its softmax in its state.
template <class Locate>
void Attend(const IsaKernels& isa, const AttendShape& shape, const Query* queries, int32_t query_count,
            const Locate& locate) {
  CHECK_LE(query_count, kMaxQueries);
  CHECK_LE(shape.window_begin, queries[0].last_position);
  SoftmaxState states[kMaxQueries];
  float* memory = ThreadScratch<float>(size_t{2} * query_count * shape.value_len);
  for (int32_t q = 0; q < query_count; ++q) {
    float* const own = memory + size_t{2} * q * shape.value_len;
    float* const kept = queries[q].state;
    states[q].acc = kept != nullptr ? kept : own;
    states[q].partial = own + shape.value_len;
    if (shape.window_begin == shape.first_position) continue;
    states[q].max = kept[shape.value_len];
    states[q].sum = kept[shape.value_len + 1];
  }
  const int32_t last_position = std::min(queries[query_count - 1].last_position, shape.window_end - 1);
  Split splits[2];
  Split* split = splits;
  Split* next = splits + 1;
  int32_t done = 0;  // queries that attend nothing from split->begin on
  FindSplit(shape, shape.window_begin, last_position, locate, *split);
  while (split->count > 0) {
    FindSplit(shape, split->begin + split->count, last_position, locate, *next);
    while (queries[done].last_position < split->begin) ++done;
    AttendSplit(isa, shape, queries + done, query_count - done, *split, states + done);
    std::swap(split, next);
  }
  for (int32_t q = 0; q < query_count; ++q) {
    if (queries[q].last_position < shape.window_end) {
      ScaleToBf16(states[q].acc, 1.0f / states[q].sum, shape.value_len, queries[q].out);
    } else {
      queries[q].state[shape.value_len] = states[q].max;
      queries[q].state[shape.value_len + 1] = states[q].sum;
    }
  }
}

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_ATTEND_H_
