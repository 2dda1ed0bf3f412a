#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/cpu/kernels_v4.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/vector_math.h"
#include "kernels/cpu/wide.h"

namespace foredraft::cpu {
namespace {

constexpr int32_t kEntryBlock = 256;  // entries of a row that one item scores

// sum over heads, in ascending order, of relu(q_h · key) * (weights_h * scale).
FOREDRAFT_WIDE float Score(const bf16* q, const bf16* key, const float* weights, float scale,
                           int32_t head_count, int32_t width) {
  float score = 0.0f;
  for (int32_t head = 0; head < head_count; ++head) {
    const bf16* const query = q + int64_t{head} * width;
    const float dot = LaneSum(width, [query, key](int64_t i) { return ToFloat(query[i]) * ToFloat(key[i]); });
    score += (dot > 0.0f ? dot : 0.0f) * (weights[head] * scale);
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
    for (int64_t item = begin; item < end; ++item) {
      const int64_t r = item / blocks;
      const int32_t visible = VisibleEntries(p, r);
      if (visible <= p.top_k) continue;
      const int32_t first = static_cast<int32_t>(item % blocks) * kEntryBlock;
      for (int32_t w = first; w < std::min(first + kEntryBlock, visible); ++w) {
        const bf16* const key = p.entries.row(p.index.slots[r], w);
        CHECK(key != nullptr) << "slot " << p.index.slots[r] << " has no indexer entry " << w;
        p.scores.row(r)[w] = Score(p.q.row(r), key, p.weights.row(r), p.scale, p.head_count, width);
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
