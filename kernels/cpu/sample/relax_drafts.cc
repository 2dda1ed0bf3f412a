// Finds the drafts that relaxed acceptance accepts (docs/speculation.md section 2). relaxed_delta compares
// probabilities at temperature 1.

#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"
#include "kernels/cpu/sample/adjusted_logits.h"
#include "kernels/cpu/sample/argmax.h"

namespace foredraft::cpu {
namespace {

// `token` is among the topk largest (ties: lower id first), and P(token) >= P(largest) - delta.
bool IsCandidate(const float* logits, int32_t vocab, int32_t token, int32_t topk, float delta) {
  const int32_t top = ArgmaxOf(logits, vocab);
  if (token == top) return true;
  if (!(delta > 0.0f)) return false;  // only the most probable token: the strict rule
  int32_t rank = 0;
  double sum = 0.0;
  for (int32_t v = 0; v < vocab; ++v) {
    rank += logits[v] > logits[token] || (logits[v] == logits[token] && v < token);
    sum += static_cast<double>(Exp(logits[v] - logits[top]));
  }
  // P(top) - P(token) = lead / sum.
  const double lead = 1.0 - static_cast<double>(Exp(logits[token] - logits[top]));
  return rank < topk && lead / sum <= static_cast<double>(delta);
}

void RelaxRow(const RelaxDraftsParams& p, int32_t r) {
  const int32_t slot = p.index.slots[r];
  p.relaxed[r] = 0;
  const int32_t next = r + 1;
  if (slot < 0 || next >= p.index.rows || p.index.slots[next] != slot || p.row_in_slot[next] == 0) return;
  const SlotConstants& c = p.slots.constants[slot];
  if (p.slots.rule->relaxed_topk == 0 || c.strict != 0 || c.temperature > 0.0f) return;
  const int32_t draft = p.slots.drafts[slot].tokens[p.row_in_slot[r]];  // as stored: may be an illegal id
  if (draft < 0 || draft >= p.logits.cols) return;
  const float* logits = p.logits.row(r);
  const AdjustedLogits adjusted(p.slots, slot, p.index.positions[r] + 1,
                                EarlierDrafts(p.ids, p.row_in_slot, r));
  if (adjusted.applies) {
    float* const scratch = p.scratch + static_cast<int64_t>(r) * p.logits.cols;
    WriteAdjusted(adjusted, p.logits.cols, logits, scratch);
    logits = scratch;
  }
  p.relaxed[r] =
      IsCandidate(logits, p.logits.cols, draft, p.slots.rule->relaxed_topk, p.slots.rule->relaxed_delta);
}

}  // namespace

void RelaxDrafts(const CpuContext& context, const RelaxDraftsParams& p) {
  context.pool.ParallelFor(p.index.rows, p.logits.cols, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) RelaxRow(p, static_cast<int32_t>(r));
  });
}

}  // namespace foredraft::cpu
