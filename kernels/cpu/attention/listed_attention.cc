#include "kernels/cpu/attention/listed_attention.h"

#include "kernels/cpu/common/lane_sums.h"
#include "kernels/cpu/common/vector_math.h"

namespace foredraft::cpu {
namespace {

// Writes scores [kHeads, kListSplit], kKeys keys at a time.
template <int kFloats, int kHeads, int kKeys>
[[gnu::always_inline]] inline void Scores(const VectorRows& q, const ListSplit& split, float* scores) {
  int32_t done = 0;
  const auto rest = [&]() -> VectorRows {
    return {split.keys.data + done * split.keys.stride, split.keys.stride};
  };
  for (; done + kKeys <= split.count; done += kKeys) {
    DotProducts<kFloats, kHeads, kKeys>(q, rest(), split.width, scores + done, kListSplit);
  }
  for (; done < split.count; ++done) {
    DotProducts<kFloats, kHeads, 1>(q, rest(), split.width, scores + done, kListSplit);
  }
}

// Continues the softmax of a head, whose scores become weights. Returns the factor of its earlier sums.
[[gnu::always_inline]] inline float ToWeights(const ListSplit& split, float* scores, ListHead& head) {
  float largest = head.max;
  for (int32_t t = 0; t < split.count; ++t) {
    scores[t] *= split.scale;
    largest = scores[t] > largest ? scores[t] : largest;
  }
  const float keep = Exp(head.max - largest);
  float sum = head.sum * keep;
  for (int32_t t = 0; t < split.count; ++t) scores[t] = Exp(scores[t] - largest);
  for (int32_t t = 0; t < split.count; ++t) sum += scores[t];
  head.max = largest;
  head.sum = sum;
  return keep;
}

template <int kFloats, int kHeads>
[[gnu::always_inline]] inline void AddValues(const float* weights, const float* keep, const ListSplit& split,
                                             ListHead* heads) {
  float* acc[kHeads];
  for (int32_t h = 0; h < kHeads; ++h) acc[h] = heads[h].acc;
  AddWeighted<kFloats, kHeads>({weights, kListSplit, keep, split.keys, split.count, split.width}, acc);
}

// A head's bits do not depend on the heads beside it.
struct AddToHeads {
  template <int kFloats>
  [[gnu::always_inline]] static void Run(const VectorRows& q, const ListSplit& split, int32_t head_count,
                                         ListHead* heads) {
    alignas(64) float weights[kMaxListHeads * kListSplit];
    float keep[kMaxListHeads];
    // As many sums as leave registers for their operands.
    constexpr int kHeads = kFloats == 16 ? 4 : kFloats == 8 ? 3 : 1;
    constexpr int kKeys = kFloats == 16 ? 4 : 2, kSumHeads = 4;
    int32_t h = 0;
    const auto queries = [&]() -> VectorRows { return {q.data + h * q.stride, q.stride}; };
    for (; h + kHeads <= head_count; h += kHeads) {
      Scores<kFloats, kHeads, kKeys>(queries(), split, weights + h * kListSplit);
    }
    for (; h < head_count; ++h) Scores<kFloats, 1, kKeys>(queries(), split, weights + h * kListSplit);
    for (h = 0; h < head_count; ++h) keep[h] = ToWeights(split, weights + h * kListSplit, heads[h]);
    for (h = 0; h + kSumHeads <= head_count; h += kSumHeads) {
      AddValues<kFloats, kSumHeads>(weights + h * kListSplit, keep + h, split, heads + h);
    }
    for (; h < head_count; ++h) {
      AddValues<kFloats, 1>(weights + h * kListSplit, keep + h, split, heads + h);
    }
  }
};

FOREDRAFT_WIDE void Divide(const float* acc, float sum, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = acc[i] / sum;
}

}  // namespace

void AddKeys(const VectorRows& q, const ListSplit& split, int32_t head_count, ListHead* heads) {
  RunInRegisters<AddToHeads>(q, split, head_count, heads);
}

void DivideBySum(const ListHead& head, int64_t width, float* out) { Divide(head.acc, head.sum, width, out); }

}  // namespace foredraft::cpu
