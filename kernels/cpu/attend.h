#ifndef FOREDRAFT_KERNELS_CPU_ATTEND_H_
#define FOREDRAFT_KERNELS_CPU_ATTEND_H_

// Softmax attention of queries that share their keys and values: the core of mla_decode (the heads of a row)
// and mla_prefill (the rows of a head).
//
// Positions are walked in splits of 64 counted from position 0 of the sequence, each with a softmax of its
// own, combined in order: a query's bits depend on the query and on what it attends, not on how the call was
// cut.

#include <algorithm>
#include <cstdint>

#include "base/check.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/dtype.h"

namespace foredraft::cpu {

inline constexpr int32_t kSplitLen = 64;

// A query in two parts, as the keys have: latent | rope or nope | rope.
struct Query {
  const bf16* a;
  const bf16* b;
  bf16* out;              // [value_len]
  int32_t last_position;  // attended, too
};

struct AttendShape {
  int32_t a_len;
  int32_t b_len;
  int32_t value_len;
  int32_t first_position;
  float scale;
};

// Where one position's key and value are.
struct KeyRows {
  const bf16* a;
  const bf16* b;
  const bf16* value;
};

// The running softmax of one query over the splits so far.
struct SoftmaxState {
  float max = 0.0f;
  float sum = 0.0f;
  float* acc = nullptr;      // [value_len]
  float* partial = nullptr;  // [value_len], of one split
};

// Turns scores[0, count) of a split into weights; returns their maximum as it was, and the weights' sum.
struct SplitSums {
  float max;
  float sum;
};
inline SplitSums SoftmaxSplit(float* scores, int32_t count, float scale) {
  for (int32_t t = 0; t < count; ++t) scores[t] *= scale;
  float max = scores[0];
  for (int32_t t = 1; t < count; ++t) max = std::max(max, scores[t]);
  for (int32_t t = 0; t < count; ++t) scores[t] = Exp(scores[t] - max);
  return {max, LaneSum(count, [scores](int64_t t) { return scores[t]; })};
}

// Adds state->partial, the weighted values of a split.
inline void MergeSplit(const SplitSums& split, int32_t value_len, SoftmaxState* state) {
  const float both_max = std::max(state->max, split.max);
  const float keep = Exp(state->max - both_max);
  const float take = Exp(split.max - both_max);
  for (int32_t i = 0; i < value_len; ++i) state->acc[i] = state->acc[i] * keep + state->partial[i] * take;
  state->max = both_max;
  state->sum = state->sum * keep + split.sum * take;
}

// One split: keys and values of [begin, begin + count).
struct Split {
  int32_t begin;
  int32_t count;
  const uint16_t* a_rows[kSplitLen];
  const uint16_t* b_rows[kSplitLen];
  const uint16_t* value_rows[kSplitLen];
};

// Queries attend what they may of the split; each attends some of it.
inline void AttendSplit(const IsaKernels& isa, const AttendShape& shape, const Query* queries,
                        int32_t query_count, const Split& split, SoftmaxState* states) {
  float scores[kMaxQueries * kSplitLen];
  const uint16_t* a[kMaxQueries];
  const uint16_t* b[kMaxQueries];
  float* out[kMaxQueries];
  SplitSums sums[kMaxQueries];
  const bool first = split.begin == shape.first_position;
  for (int32_t q = 0; q < query_count; ++q) {
    a[q] = &queries[q].a->bits;
    b[q] = &queries[q].b->bits;
    out[q] = first ? states[q].acc : states[q].partial;
  }
  isa.attention_scores({scores, a, b, split.a_rows, split.b_rows, shape.a_len, shape.b_len, split.count,
                        query_count, kSplitLen});
  int32_t together = 0;  // queries up to here attend the same positions: one pass over the values
  for (int32_t q = 0; q < query_count; ++q) {
    const int32_t count = std::min(split.count, queries[q].last_position + 1 - split.begin);
    sums[q] = SoftmaxSplit(scores + q * kSplitLen, count, shape.scale);
    const bool more =
        q + 1 < query_count && std::min(split.count, queries[q + 1].last_position + 1 - split.begin) == count;
    if (more) continue;
    isa.weighted_sum({out + together, scores + together * kSplitLen, split.value_rows, count, shape.value_len,
                      q + 1 - together, kSplitLen});
    together = q + 1;
  }
  for (int32_t q = 0; q < query_count; ++q) {
    if (first) {
      states[q].max = sums[q].max;
      states[q].sum = sums[q].sum;
    } else {
      MergeSplit(sums[q], shape.value_len, &states[q]);
    }
  }
}

// locate(position) -> KeyRows. Queries stand in order of their last positions and attend one position at
// least.
template <class Locate>
void Attend(const IsaKernels& isa, const AttendShape& shape, const Query* queries, int32_t query_count,
            const Locate& locate) {
  CHECK_LE(query_count, kMaxQueries);
  CHECK_LE(shape.first_position, queries[0].last_position);
  SoftmaxState states[kMaxQueries];
  float* memory = ThreadScratch<float>(size_t{2} * query_count * shape.value_len);
  for (int32_t q = 0; q < query_count; ++q) {
    states[q].acc = memory + size_t{2} * q * shape.value_len;
    states[q].partial = states[q].acc + shape.value_len;
  }
  const int32_t last_position = queries[query_count - 1].last_position;
  Split split;
  int32_t done = 0;  // queries that attend nothing from split.begin on
  for (split.begin = shape.first_position; split.begin <= last_position; split.begin += split.count) {
    split.count = std::min(last_position + 1, (split.begin / kSplitLen + 1) * kSplitLen) - split.begin;
    for (int32_t t = 0; t < split.count; ++t) {
      const KeyRows rows = locate(split.begin + t);
      split.a_rows[t] = &rows.a->bits;
      split.b_rows[t] = &rows.b->bits;
      split.value_rows[t] = &rows.value->bits;
    }
    while (queries[done].last_position < split.begin) ++done;
    AttendSplit(isa, shape, queries + done, query_count - done, split, states + done);
  }
  for (int32_t q = 0; q < query_count; ++q) {
    const float factor = 1.0f / states[q].sum;
    for (int32_t i = 0; i < shape.value_len; ++i) queries[q].out[i] = ToBf16(states[q].acc[i] * factor);
  }
}

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_ATTEND_H_
