// Finds the drafts that relaxed acceptance accepts, a block per row (kernels/cpu/relax_drafts.cc). The
// softmax is summed in another order than on the CPU, so for a draft within a double's rounding of
// relaxed_delta the result may differ from the CPU's.

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/logit_row.h"
#include "kernels/cuda/ordered_key.h"
#include "kernels/cuda/ptx.h"
#include "kernels/exp.h"

namespace foredraft::cuda {
namespace {

struct RelaxShared {
  unsigned long long keys[kMaxWarps];
  double sums[kMaxWarps];
  int32_t counts[kMaxWarps];
};

// `token` is among the topk largest (ties: lower id first), and P(token) >= P(largest) - delta. Returns the
// same to all threads.
__device__ bool IsCandidate(const RelaxDraftsParams& p, const PenalisedLogits& penalised, const float* logits,
                            int32_t token, RelaxShared& shared) {
  const int32_t vocab = p.logits.cols;
  unsigned long long best = 0;
  ForEachLogit(logits, vocab, [&](int32_t v, float x) {
    best = Largest()(best, static_cast<unsigned long long>(IndexedKey(OrderedKey(penalised(v, x)), v)));
  });
  best = BlockReduce(best, Largest(), shared.keys);
  const int32_t top = IndexOf(best);
  if (token == top) return true;
  const float delta = p.slots.rule->relaxed_delta;
  if (!(delta > 0.0f)) return false;  // only the most probable token: the strict rule

  const float top_logit = penalised(top, logits[top]);
  const float token_logit = penalised(token, logits[token]);
  int32_t rank = 0;
  double sum = 0.0;
  ForEachLogit(logits, vocab, [&](int32_t v, float x) {
    const float logit = penalised(v, x);
    rank += logit > token_logit || (logit == token_logit && v < token) ? 1 : 0;
    sum += static_cast<double>(Exp(logit - top_logit));
  });
  rank = BlockReduce(rank, Sum(), shared.counts);
  sum = BlockReduce(sum, Sum(), shared.sums);
  // P(top) - P(token) = lead / sum.
  const double lead = 1.0 - static_cast<double>(Exp(token_logit - top_logit));
  return rank < p.slots.rule->relaxed_topk && lead / sum <= static_cast<double>(delta);
}

__global__ void __launch_bounds__(kMaxRowThreads)
    RelaxDraftsKernel(const __grid_constant__ RelaxDraftsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t next = r + 1;
  const int32_t slot = p.index.slots[r];
  bool relaxed = slot >= 0 && next < p.index.rows && p.index.slots[next] == slot && p.row_in_slot[next] != 0;
  if (relaxed) {
    const SlotConstants& c = p.slots.constants[slot];
    relaxed = p.slots.rule->relaxed_topk != 0 && c.strict == 0 && !(c.temperature > 0.0f);
  }
  if (relaxed) {
    // As stored: may be an illegal id.
    const int32_t draft = p.slots.drafts[slot].tokens[p.row_in_slot[r]];
    relaxed = draft >= 0 && draft < p.logits.cols;
    if (relaxed) {
      const PenalisedLogits penalised(p.slots, slot, EarlierDrafts(p.ids, p.row_in_slot, r));
      relaxed = IsCandidate(p, penalised, p.logits.row(r), draft, SharedStorage<RelaxShared>());
    }
  }
  if (threadIdx.x == 0) p.relaxed[r] = relaxed ? 1 : 0;
}

}  // namespace

void RelaxDrafts(Stream& stream, const RelaxDraftsParams& p) {
  Launch(stream, RelaxDraftsKernel,
         {.grid = dim3(p.index.rows),
          .block = dim3(ThreadsPerRow(p.logits.cols)),
          .shared_bytes = sizeof(RelaxShared)},
         p);
}

}  // namespace foredraft::cuda
