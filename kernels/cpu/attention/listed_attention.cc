#include "kernels/cpu/attention/listed_attention.h"

#include "kernels/cpu/common/lane_sums.h"
#include "kernels/cpu/common/vector_math.h"

namespace foredraft::cpu {
namespace {

constexpr int32_t kTogether = 4;  // keys whose products and sums run side by side

// kHeads heads side by side. A head's bits do not depend on it.
template <int32_t kHeads>
[[gnu::always_inline]] inline void AddToSoftmax(const float* q, const float* keys, int32_t count,
                                                int64_t width, float scale, ListHead* heads) {
  float scores[kHeads][kListSplit], weights[kHeads][kListSplit];
  float* acc[kHeads];
  int32_t done = 0;
  for (; done + kTogether <= count; done += kTogether) {
    DotProductsOfRows<kHeads>(q, keys + done * width, width, scores[0] + done, kListSplit);
  }
  for (; done < count; ++done) {
    for (int32_t h = 0; h < kHeads; ++h) {
      DotProducts<1>(q + h * width, keys + done * width, width, width, scores[h] + done);
    }
  }
  for (int32_t h = 0; h < kHeads; ++h) {
    ListHead& state = heads[h];
    float largest = state.max;
    for (int32_t t = 0; t < count; ++t) {
      scores[h][t] *= scale;
      largest = scores[h][t] > largest ? scores[h][t] : largest;
    }
    const float keep = Exp(state.max - largest);
    float sum = state.sum * keep;
    acc[h] = state.acc;
    for (int64_t i = 0; i < width; ++i) acc[h][i] *= keep;
    for (int32_t t = 0; t < count; ++t) weights[h][t] = Exp(scores[h][t] - largest);
    for (int32_t t = 0; t < count; ++t) sum += weights[h][t];
    state.max = largest;
    state.sum = sum;
  }
  for (done = 0; done + kTogether <= count; done += kTogether) {
    AddScaled<kTogether, kHeads>(weights[0] + done, kListSplit, keys + done * width, width, acc);
  }
  for (; done < count; ++done) {
    AddScaled<1, kHeads>(weights[0] + done, kListSplit, keys + done * width, width, acc);
  }
}

FOREDRAFT_WIDE void AddToOne(const float* q, const float* keys, int32_t count, int64_t width, float scale,
                             ListHead* heads) {
  AddToSoftmax<1>(q, keys, count, width, scale, heads);
}

constexpr int32_t kHeadsTogether = 4;  // 16 sums of 16 lanes

FOREDRAFT_WIDE void AddToSeveral(const float* q, const float* keys, int32_t count, int64_t width, float scale,
                                 ListHead* heads) {
  AddToSoftmax<kHeadsTogether>(q, keys, count, width, scale, heads);
}

// Registers for several heads.
bool HasWideRegisters() {
  static const bool has = __builtin_cpu_supports("avx512f") != 0;
  return has;
}

FOREDRAFT_WIDE void Divide(const float* acc, float sum, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = acc[i] / sum;
}

}  // namespace

void AddKeys(const float* q, const float* keys, int32_t count, int64_t width, float scale, int32_t head_count,
             ListHead* heads) {
  int32_t h = 0;
  for (; HasWideRegisters() && h + kHeadsTogether <= head_count; h += kHeadsTogether) {
    AddToSeveral(q + h * width, keys, count, width, scale, heads + h);
  }
  for (; h < head_count; ++h) AddToOne(q + h * width, keys, count, width, scale, heads + h);
}

void DivideBySum(const ListHead& head, int64_t width, float* out) { Divide(head.acc, head.sum, width, out); }

}  // namespace foredraft::cpu
