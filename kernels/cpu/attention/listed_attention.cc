#include "kernels/cpu/attention/listed_attention.h"

#include "kernels/cpu/common/lane_sums.h"
#include "kernels/cpu/common/vector_math.h"

namespace foredraft::cpu {
namespace {

constexpr int32_t kTogether = 4;  // keys whose products and sums run side by side

FOREDRAFT_WIDE void AddToSoftmax(const float* q, const float* keys, int32_t count, int64_t width, float scale,
                                 ListHead& state) {
  float scores[kListSplit];
  float largest = state.max;
  int32_t done = 0;
  for (; done + kTogether <= count; done += kTogether) {
    DotProducts<kTogether>(q, keys + done * width, width, width, scores + done);
  }
  for (; done < count; ++done) DotProducts<1>(q, keys + done * width, width, width, scores + done);
  for (int32_t t = 0; t < count; ++t) {
    scores[t] *= scale;
    largest = scores[t] > largest ? scores[t] : largest;
  }
  const float keep = Exp(state.max - largest);
  float sum = state.sum * keep;
  float* const acc = state.acc;
  for (int64_t i = 0; i < width; ++i) acc[i] *= keep;
  float weights[kListSplit];
  for (int32_t t = 0; t < count; ++t) weights[t] = Exp(scores[t] - largest);
  for (int32_t t = 0; t < count; ++t) sum += weights[t];
  for (done = 0; done + kTogether <= count; done += kTogether) {
    AddScaled<kTogether>(weights + done, keys + done * width, width, width, acc);
  }
  for (; done < count; ++done) AddScaled<1>(weights + done, keys + done * width, width, width, acc);
  state.max = largest;
  state.sum = sum;
}

FOREDRAFT_WIDE void Divide(const float* acc, float sum, int64_t width, float* out) {
  for (int64_t i = 0; i < width; ++i) out[i] = acc[i] / sum;
}

}  // namespace

void AddKeys(const float* q, const float* keys, int32_t count, int64_t width, float scale, ListHead& head) {
  AddToSoftmax(q, keys, count, width, scale, head);
}

void DivideBySum(const ListHead& head, int64_t width, float* out) { Divide(head.acc, head.sum, width, out); }

}  // namespace foredraft::cpu
