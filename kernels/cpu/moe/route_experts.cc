#include <algorithm>
#include <limits>

#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

// The index of the largest value not yet taken; ties: the lowest index. NaN counts as -infinity, so that even
// a row of NaN gets distinct experts.
int32_t TakeLargest(const float* values, uint8_t* taken, int32_t count) {
  int32_t best = -1;
  float best_value = 0.0f;
  for (int32_t i = 0; i < count; ++i) {
    if (taken[i]) continue;
    const float value = values[i] == values[i] ? values[i] : -std::numeric_limits<float>::infinity();
    if (best < 0 || value > best_value) {
      best = i;
      best_value = value;
    }
  }
  CHECK_GE(best, 0);
  taken[best] = 1;
  return best;
}

// The sum of the two largest values; the value itself in a group of one.
float GroupScore(const float* biased, int32_t size) {
  float first = -std::numeric_limits<float>::infinity();
  float second = first;
  for (int32_t i = 0; i < size; ++i) {
    if (biased[i] > first) {
      second = first;
      first = biased[i];
    } else if (biased[i] > second) {
      second = biased[i];
    }
  }
  return size == 1 ? first : first + second;
}

struct RowScratch {
  float* scores;        // [E] sigmoid
  float* biased;        // [E] selects
  float* group_scores;  // [n_group]
  uint8_t* excluded;    // [E]
  uint8_t* group_kept;  // [n_group]
};

// scores = sigmoid(logits), biased = scores + bias
FOREDRAFT_WIDE void ScoreExperts(const float* logits, const float* bias, int32_t experts,
                                 const RowScratch& s) {
  float* scores = s.scores;
  float* biased = s.biased;
  for (int32_t e = 0; e < experts; ++e) scores[e] = Sigmoid(logits[e]);
  for (int32_t e = 0; e < experts; ++e) biased[e] = scores[e] + bias[e];
}

void RouteRow(const RouteExpertsParams& p, int64_t r, const RowScratch& s) {
  const int32_t experts = p.logits.cols;
  ScoreExperts(p.logits.row(r), p.bias, experts, s);
  const int32_t group_size = experts / p.n_group;
  std::fill_n(s.excluded, experts, p.n_group > 1 ? 1 : 0);
  if (p.n_group > 1) {
    std::fill_n(s.group_kept, p.n_group, 0);
    for (int32_t g = 0; g < p.n_group; ++g) {
      s.group_scores[g] = GroupScore(s.biased + g * group_size, group_size);
    }
    for (int32_t i = 0; i < p.topk_group; ++i) {
      const int32_t g = TakeLargest(s.group_scores, s.group_kept, p.n_group);
      std::fill_n(s.excluded + g * group_size, group_size, 0);
    }
  }
  int32_t* ids = p.expert_ids + r * p.top_k;
  float* weights = p.expert_weights + r * p.top_k;
  for (int32_t i = 0; i < p.top_k; ++i) ids[i] = TakeLargest(s.biased, s.excluded, experts);
  std::sort(ids, ids + p.top_k);
  float sum = 0.0f;
  for (int32_t i = 0; i < p.top_k; ++i) sum += s.scores[ids[i]];
  const float divisor = p.norm_topk_prob != 0 ? sum + 1e-20f : 1.0f;
  for (int32_t i = 0; i < p.top_k; ++i) {
    weights[i] = s.scores[ids[i]] / divisor * p.routed_scaling_factor;
  }
}

}  // namespace

void RouteExperts(const CpuContext& context, const RouteExpertsParams& p) {
  const int32_t experts = p.logits.cols;
  CHECK_EQ(experts % p.n_group, 0);
  const int64_t cost = static_cast<int64_t>(experts) * (16 + p.top_k);
  context.pool.ParallelFor(p.index.rows, cost, [&](int64_t begin, int64_t end) {
    float* floats = ThreadScratch<float>(2 * experts + p.n_group);
    uint8_t* flags = ThreadScratch<uint8_t>(experts + p.n_group);
    const RowScratch scratch = {floats, floats + experts, floats + 2 * experts, flags, flags + experts};
    for (int64_t r = begin; r < end; ++r) {
      if (p.index.slots[r] < 0) {
        std::fill_n(p.expert_ids + r * p.top_k, p.top_k, -1);
        std::fill_n(p.expert_weights + r * p.top_k, p.top_k, 0.0f);
      } else {
        RouteRow(p, r, scratch);
      }
    }
  });
}

}  // namespace foredraft::cpu
