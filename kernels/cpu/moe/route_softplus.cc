#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/exp.h"

namespace foredraft::cpu {
namespace {

// Roots get their own loop: GCC calls sqrtf where it may set errno, and vectorises no loop with calls.
FOREDRAFT_WIDE void Scores(const float* logits, int32_t experts, float* scores) {
  for (int32_t e = 0; e < experts; ++e) scores[e] = Softplus(logits[e]);
  for (int32_t e = 0; e < experts; ++e) scores[e] = std::sqrt(scores[e]);
}

// The top_k experts of score + bias; ties: the lower index. NaN counts as -infinity, so that even a row of
// NaN gets distinct experts.
void ChooseByScore(const float* scores, const float* bias, int32_t experts, int32_t top_k, float* biased,
                   int32_t* ids) {
  for (int32_t e = 0; e < experts; ++e) {
    const float value = scores[e] + bias[e];
    biased[e] = value == value ? value : -std::numeric_limits<float>::infinity();
  }
  int32_t* const order = ThreadScratch<int32_t>(experts);
  for (int32_t e = 0; e < experts; ++e) order[e] = e;
  std::partial_sort(order, order + top_k, order + experts, [biased](int32_t a, int32_t b) {
    return biased[a] != biased[b] ? biased[a] > biased[b] : a < b;
  });
  std::copy_n(order, top_k, ids);
}

void RouteRow(const RouteSoftplusParams& p, int64_t r, float* memory) {
  const int32_t experts = p.logits.cols;
  float* const scores = memory;
  Scores(p.logits.row(r), experts, scores);
  int32_t* const ids = p.expert_ids + r * p.top_k;
  if (p.expert_table != nullptr) {
    const int64_t token = p.ids[r] >= 0 && p.ids[r] < p.vocab_size ? p.ids[r] : 0;
    std::copy_n(p.expert_table + token * p.top_k, p.top_k, ids);
  } else {
    ChooseByScore(scores, p.bias, experts, p.top_k, scores + experts, ids);
  }
  std::sort(ids, ids + p.top_k);
  float sum = 0.0f;
  for (int32_t i = 0; i < p.top_k; ++i) sum += scores[ids[i]];
  for (int32_t i = 0; i < p.top_k; ++i) {
    p.expert_weights[r * p.top_k + i] = scores[ids[i]] / (sum + 1e-20f) * p.routed_scaling_factor;
  }
}

}  // namespace

void RouteSoftplus(const CpuContext& context, const RouteSoftplusParams& p) {
  const int32_t experts = p.logits.cols;
  CHECK_LE(p.top_k, experts);
  context.pool.ParallelFor(p.index.rows, int64_t{32} * experts, [&](int64_t begin, int64_t end) {
    float* const memory = ThreadScratch<float>(size_t{2} * experts);
    for (int64_t r = begin; r < end; ++r) {
      if (p.index.slots[r] < 0) {
        std::fill_n(p.expert_ids + r * p.top_k, p.top_k, -1);
        std::fill_n(p.expert_weights + r * p.top_k, p.top_k, 0.0f);
      } else {
        RouteRow(p, r, memory);
      }
    }
  });
}

}  // namespace foredraft::cpu
