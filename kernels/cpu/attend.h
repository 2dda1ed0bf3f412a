#ifndef FOREDRAFT_KERNELS_CPU_ATTEND_H_
#define FOREDRAFT_KERNELS_CPU_ATTEND_H_

// Softmax attention of one row for heads that share their keys and values: the core of mla_decode (where all
// heads do) and mla_prefill (one head at a time).
//
// Positions are walked in splits of 64 counted from position 0 of the sequence, each with a softmax of its
// own, combined in order: a row's bits depend on its queries and on what it attends, not on how the call was
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

// The query of a head in two parts, as the keys have: latent | rope or nope | rope.
struct HeadQuery {
  const bf16* a;
  const bf16* b;
  bf16* out;  // [value_len]
};

struct AttendShape {
  int32_t a_len;
  int32_t b_len;
  int32_t value_len;
  int32_t first_position;
  int32_t last_position;  // attended, too
  float scale;
};

// Where one position's key and value are.
struct KeyRows {
  const bf16* a;
  const bf16* b;
  const bf16* value;
};

// The running softmax of one head over the splits so far.
struct SoftmaxState {
  float max = 0.0f;
  float sum = 0.0f;
};

// Adds a split with scores[0, count) and values `rows` to (state, acc).
inline void AddSplit(const IsaKernels& isa, bool first, float* scores, const uint16_t* const* rows,
                     int32_t count, int32_t value_len, float* partial, SoftmaxState* state, float* acc) {
  float split_max = scores[0];
  for (int32_t t = 1; t < count; ++t) split_max = std::max(split_max, scores[t]);
  for (int32_t t = 0; t < count; ++t) scores[t] = Exp(scores[t] - split_max);
  const float split_sum = LaneSum(count, [scores](int64_t t) { return scores[t]; });
  isa.weighted_sum({first ? acc : partial, scores, rows, count, value_len});
  if (first) {
    *state = {split_max, split_sum};
    return;
  }
  const float both_max = std::max(state->max, split_max);
  const float keep = Exp(state->max - both_max);
  const float take = Exp(split_max - both_max);
  for (int32_t i = 0; i < value_len; ++i) acc[i] = acc[i] * keep + partial[i] * take;
  *state = {both_max, state->sum * keep + split_sum * take};
}

// locate(position) -> KeyRows. A row attends itself at least.
template <class Locate>
void AttendRow(const IsaKernels& isa, const AttendShape& shape, const HeadQuery* heads, int32_t head_count,
               const Locate& locate) {
  constexpr int32_t kMaxHeads = 8;
  CHECK_LE(head_count, kMaxHeads);
  CHECK_LE(shape.first_position, shape.last_position);
  SoftmaxState states[kMaxHeads];
  float* acc = ThreadScratch<float>(static_cast<size_t>(head_count + 1) * shape.value_len);
  float* partial = acc + static_cast<size_t>(head_count) * shape.value_len;
  const uint16_t* a_rows[kSplitLen];
  const uint16_t* b_rows[kSplitLen];
  const uint16_t* value_rows[kSplitLen];
  float scores[kSplitLen];

  for (int32_t begin = shape.first_position; begin <= shape.last_position;) {
    const int32_t end = std::min(shape.last_position + 1, (begin / kSplitLen + 1) * kSplitLen);
    const int32_t count = end - begin;
    for (int32_t t = 0; t < count; ++t) {
      const KeyRows rows = locate(begin + t);
      a_rows[t] = &rows.a->bits;
      b_rows[t] = &rows.b->bits;
      value_rows[t] = &rows.value->bits;
    }
    for (int32_t h = 0; h < head_count; ++h) {
      isa.attention_scores(
          {scores, &heads[h].a->bits, &heads[h].b->bits, a_rows, b_rows, shape.a_len, shape.b_len, count});
      for (int32_t t = 0; t < count; ++t) scores[t] *= shape.scale;
      AddSplit(isa, begin == shape.first_position, scores, value_rows, count, shape.value_len, partial,
               &states[h], acc + static_cast<int64_t>(h) * shape.value_len);
    }
    begin = end;
  }
  for (int32_t h = 0; h < head_count; ++h) {
    const float* sums = acc + static_cast<int64_t>(h) * shape.value_len;
    const float factor = 1.0f / states[h].sum;
    for (int32_t i = 0; i < shape.value_len; ++i) heads[h].out[i] = ToBf16(sums[i] * factor);
  }
}

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_ATTEND_H_
