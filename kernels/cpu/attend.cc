#include "kernels/cpu/attend.h"

#include "kernels/cpu/argmax.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"

namespace foredraft::cpu {

FOREDRAFT_WIDE SplitSums SoftmaxSplit(float* scores, int32_t count, float scale) {
  for (int32_t t = 0; t < count; ++t) scores[t] *= scale;
  const float max = LargestOf(scores, count);
  for (int32_t t = 0; t < count; ++t) scores[t] = Exp(scores[t] - max);
  return {max, LaneSum(count, [scores](int64_t t) { return scores[t]; })};
}

FOREDRAFT_WIDE void MergeSplit(const SplitSums& split, int32_t value_len, SoftmaxState& state) {
  const float both_max = std::max(state.max, split.max);
  const float keep = Exp(state.max - both_max);
  const float take = Exp(split.max - both_max);
  float* acc = state.acc;
  const float* partial = state.partial;
  for (int32_t i = 0; i < value_len; ++i) acc[i] = acc[i] * keep + partial[i] * take;
  state.max = both_max;
  state.sum = state.sum * keep + split.sum * take;
}

void AttendSplit(const IsaKernels& isa, const AttendShape& shape, const Query* queries, int32_t query_count,
                 const Split& split, SoftmaxState* states) {
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
  int32_t together = 0;  // queries [together, q] attend the same positions: one pass over the values
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
      MergeSplit(sums[q], shape.value_len, states[q]);
    }
  }
}

}  // namespace foredraft::cpu
