#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/common/lane_sums.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int32_t kEntryBlock = 256;  // entries of a row that one item scores

FOREDRAFT_WIDE void Widen(const bf16* x, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) out[i] = ToFloat(x[i]);
}

// sum over heads, in ascending order, of relu(q_h · key) * (weights_h * scale).
FOREDRAFT_WIDE float Score(const float* q, const float* key, const float* weights, float scale,
                           int32_t head_count, int32_t width) {
  constexpr int32_t kTogether = 4;
  float score = 0.0f;
  float dots[kTogether];
  int32_t head = 0;
  const auto add = [&](int32_t count) __attribute__((always_inline)) {
    for (int32_t i = 0; i < count; ++i) {
      score += (dots[i] > 0.0f ? dots[i] : 0.0f) * (weights[head + i] * scale);
    }
  };
  for (; head + kTogether <= head_count; head += kTogether) {
    DotProducts<kTogether>(key, q + int64_t{head} * width, width, width, dots);
    add(kTogether);
  }
  for (; head < head_count; ++head) {
    DotProducts<1>(key, q + int64_t{head} * width, width, width, dots);
    add(1);
  }
  return score;
}

int32_t VisibleEntries(const SelectEntriesParams& p, int64_t row) {
  return p.index.slots[row] < 0 ? 0 : (p.index.positions[row] + 1) / p.ratio;
}

// The top_k entries of `scores`, ascending. NaN counts as -infinity.
void SelectBest(float* scores, int32_t count, int32_t top_k, int32_t* selected) {
  for (int32_t w = 0; w < count; ++w) {
    if (scores[w] != scores[w]) scores[w] = -std::numeric_limits<float>::infinity();
  }
  int32_t* const order = ThreadScratch<int32_t>(count);
  for (int32_t w = 0; w < count; ++w) order[w] = w;
  std::nth_element(order, order + top_k, order + count, [scores](int32_t a, int32_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  });
  std::sort(order, order + top_k);
  std::copy_n(order, top_k, selected);
}

}  // namespace

void SelectEntries(const CpuContext& context, const SelectEntriesParams& p) {
  const int32_t width = p.entries.width;
  int32_t most = 0;  // of entries that any row has to score
  for (int32_t r = 0; r < p.index.rows; ++r) {
    const int32_t visible = VisibleEntries(p, r);
    if (visible > p.top_k) most = std::max(most, visible);
  }
  CHECK_LE(most, p.scores.cols);
  const int64_t blocks = (most + kEntryBlock - 1) / kEntryBlock;
  const int64_t cost = int64_t{2} * kEntryBlock * p.head_count * width;
  context.pool.ParallelFor(p.index.rows * blocks, cost, [&](int64_t begin, int64_t end) {
    float* const key = ThreadScratch<float>((size_t{1} + p.head_count) * width);
    float* const q = key + width;
    for (int64_t item = begin; item < end; ++item) {
      const int64_t r = item / blocks;
      const int32_t visible = VisibleEntries(p, r);
      if (visible <= p.top_k) continue;
      Widen(p.q.row(r), int64_t{p.head_count} * width, q);
      const int32_t first = static_cast<int32_t>(item % blocks) * kEntryBlock;
      for (int32_t w = first; w < std::min(first + kEntryBlock, visible); ++w) {
        const bf16* const entry = p.entries.row(p.index.slots[r], w);
        CHECK(entry != nullptr) << "slot " << p.index.slots[r] << " has no indexer entry " << w;
        Widen(entry, width, key);
        p.scores.row(r)[w] = Score(q, key, p.weights.row(r), p.scale, p.head_count, width);
      }
    }
  });
  context.pool.ParallelFor(p.index.rows, 16 * most + p.top_k, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int32_t* const selected = p.selected + r * p.top_k;
      const int32_t visible = VisibleEntries(p, r);
      if (visible > p.top_k) {
        SelectBest(p.scores.row(r), visible, p.top_k, selected);
        continue;
      }
      for (int32_t i = 0; i < p.top_k; ++i) selected[i] = i < visible ? i : -1;
    }
  });
}

}  // namespace foredraft::cpu
