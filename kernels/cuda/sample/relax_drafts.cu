// Finds the drafts that relaxed acceptance accepts (kernels/cpu/sample/relax_drafts.cc): a kernel that sums
// up chunks of the rows, and one that decides. The softmax is summed in another order than on the CPU, and
// relative to the chunks' largest logits, so for a draft within a few float roundings of relaxed_delta the
// result may differ from the CPU's.

#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/sample/logit_row.h"

namespace foredraft::cuda {
namespace {

struct RelaxPlan {
  RelaxDraftsParams p;
  RowSplit split;
  // [R, split.chunks], of the adjusted logits:
  IndexedKeyBits* largest;
  double* sums;     // of exp(logit - ReferenceOf(largest))
  int32_t* before;  // how many tokens of the chunk come before the draft
};

struct RelaxShared {
  ChunkStage stage;
  IndexedKeyBits keys[kMaxWarps];
  double sums[kMaxWarps];
  int32_t counts[kMaxWarps];
};

// The draft that row r may accept; -1: none, or the rule is strict.
__device__ int32_t DraftOfRow(const RelaxDraftsParams& p, int32_t r) {
  const int32_t next = r + 1;
  const int32_t slot = p.index.slots[r];
  if (slot < 0 || next >= p.index.rows || p.index.slots[next] != slot || p.row_in_slot[next] == 0) return -1;
  const SlotConstants& c = p.slots.constants[slot];
  if (p.slots.rule->relaxed_topk == 0 || c.strict != 0 || c.temperature > 0.0f) return -1;
  const int32_t draft = p.slots.drafts[slot].tokens[p.row_in_slot[r]];  // as stored: may be an illegal id
  return draft < p.logits.cols ? draft : -1;
}

__device__ AdjustedLogits AdjustedRow(const RelaxDraftsParams& p, int32_t r) {
  return {p.slots, p.index.slots[r], p.index.positions[r] + 1, EarlierDrafts(p.ids, p.row_in_slot, r)};
}

__device__ void SumUpChunk(const RelaxPlan& plan, int32_t r, int32_t chunk, IndexedKeyBits draft_key,
                           RelaxShared& shared) {
  const AdjustedLogits adjusted = AdjustedRow(plan.p, r);
  const int32_t columns = plan.split.columns;
  LoadChunk(shared.stage, plan.p.logits.row(r), columns, chunk);
  IndexedKeyBits largest = 0;
  int32_t before = 0;
  ForEachLoaded(shared.stage, columns, chunk, [&](int32_t v, float x) {
    const IndexedKeyBits key = KeyOf(v, adjusted(v, x));
    largest = Largest()(largest, key);
    before += key > draft_key ? 1 : 0;
  });
  largest = BlockReduce(largest, Largest(), shared.keys);
  before = BlockReduce(before, Sum(), shared.counts);
  const float reference = ReferenceOf(largest);
  double sum = 0.0;
  ForEachLoaded(shared.stage, columns, chunk,
                [&](int32_t v, float x) { sum += static_cast<double>(Exp(adjusted(v, x) - reference)); });
  sum = BlockReduce(sum, Sum(), shared.sums);
  if (threadIdx.x != 0) return;
  const int64_t index = int64_t{r} * plan.split.chunks + chunk;
  plan.largest[index] = largest;
  plan.sums[index] = sum;
  plan.before[index] = before;
}

__global__ void __launch_bounds__(kChunkThreads) SumUpChunks(const __grid_constant__ RelaxPlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t draft = DraftOfRow(plan.p, r);
  if (draft < 0) return;
  const IndexedKeyBits draft_key = KeyOf(draft, AdjustedRow(plan.p, r)(draft, plan.p.logits.row(r)[draft]));
  for (int32_t chunk = plan.split.first_chunk(); chunk < plan.split.end_chunk(); ++chunk) {
    SumUpChunk(plan, r, chunk, draft_key, SharedStorage<RelaxShared>());
  }
}

// Whether the draft is among the topk largest (ties: lower id first), and P(draft) >= P(largest) - delta.
// Called by a warp.
__device__ bool IsCandidate(const RelaxPlan& plan, int32_t r, int32_t draft) {
  const RelaxDraftsParams& p = plan.p;
  const int32_t chunks = plan.split.chunks;
  const int64_t first = int64_t{r} * chunks;
  const IndexedKeyBits top = LargestKey(plan.largest + first, chunks);
  if (IndexOf(top) == draft) return true;
  const float delta = p.slots.rule->relaxed_delta;
  if (!(delta > 0.0f)) return false;  // only the most probable token: the strict rule

  const int32_t rank = ReduceByWarp(plan.before + first, chunks, 0, Sum());
  const float top_logit = LogitOf(top);
  const double sum =
      SumOfChunks(plan.sums + first, chunks, top_logit, [&](int32_t c) { return plan.largest[first + c]; });
  // P(top) - P(draft) = lead / sum.
  const float draft_logit = AdjustedRow(p, r)(draft, p.logits.row(r)[draft]);
  const double lead = 1.0 - static_cast<double>(Exp(draft_logit - top_logit));
  return rank < p.slots.rule->relaxed_topk && lead / sum <= static_cast<double>(delta);
}

// A warp per row.
__global__ void __launch_bounds__(32) DecideRows(const __grid_constant__ RelaxPlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t draft = DraftOfRow(plan.p, r);
  const bool relaxed = draft >= 0 && IsCandidate(plan, r, draft);
  if (threadIdx.x == 0) plan.p.relaxed[r] = relaxed ? 1 : 0;
}

}  // namespace

void RelaxDrafts(Stream& stream, const RelaxDraftsParams& p) {
  auto& cuda = static_cast<CudaStream&>(stream);
  const int32_t rows = p.index.rows;
  RelaxPlan plan = {
      .p = p,
      .split = SplitRow(rows, p.logits.cols, kReadBlocksPerMultiprocessor * cuda.multiprocessor_count())};
  const size_t count = static_cast<size_t>(rows) * plan.split.chunks;
  plan.largest = static_cast<IndexedKeyBits*>(
      cuda.Scratch(count * (sizeof(*plan.largest) + sizeof(*plan.sums) + sizeof(*plan.before))));
  plan.sums = reinterpret_cast<double*>(plan.largest + count);
  plan.before = reinterpret_cast<int32_t*>(plan.sums + count);
  Launch(stream, SumUpChunks, BlocksOfRows(rows, plan.split, sizeof(RelaxShared)), plan);
  Launch(stream, DecideRows, {.grid = dim3(rows), .block = dim3(32)}, plan);
}

}  // namespace foredraft::cuda
