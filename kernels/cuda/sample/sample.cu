// sample (the filters are listed in kernels/cpu/sample/sample.cc) as five kernels, each with several blocks
// per row (kernels/cuda/common/row_blocks.h) but for the last:
//
// clang-format off
//   SurveyLogits   the row's mask and the request's adjustments; the largest and the lowest logit; per chunk, what logprobs need. A row that is not
//                  usable (kNoToken) has the largest key of all, and takes no part in what follows
//   CountLogits    logits and probabilities per bin        (rows with top-k or top-p; kernels/cuda/sample/sample_filter.h)
//   ListCandidates the keys in the bins where a filter ends        (the same rows)
//   DrawTokens     the key where the filters end; the largest logit plus noise        (sampled rows)
//   FinishRows     the token; its logprobs (kernels/cuda/sample/logprobs.h)
// clang-format on
//
// Ties, filter boundaries and noise equal the CPU's, with two exceptions. Probabilities are summed in fixed
// point, with 2^44 for the most probable token, so a token within V 2^-44 (2^-27 for 129,280) of top-p's
// boundary may fall on the other side of it. And the noise uses CUDA's logarithms, which are within one unit
// in the last place of a double before rounding to float.

#include "base/check.h"
#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/cuda/sample/logit_row.h"
#include "kernels/cuda/sample/logprobs.h"
#include "kernels/cuda/sample/sample_filter.h"
#include "kernels/philox.h"

namespace foredraft::cuda {
namespace {

struct SamplePlan {
  SampleParams p;
  RowSplit split;
  IndexedKeyBits* largest = nullptr;   // [R, blocks]: keys of the scaled logits, after adjustments
  IndexedKeyBits* drawn = nullptr;     // [R, blocks]: keys of the scaled logits plus noise
  uint32_t* lowest = nullptr;          // [R, blocks]: OrderedKey of the lowest finite scaled logit
  RowSelection* selections = nullptr;  // [R]
  LogprobArrays logprobs;              // absent without p.logprobs

  __device__ const SlotConstants& constants(int32_t slot) const { return p.slots.constants[slot]; }
  __device__ bool greedy(int32_t slot) const { return constants(slot).temperature <= 0.0f; }
  __device__ bool wants_logprobs(int32_t slot) const {
    return p.logprobs != nullptr && constants(slot).logprob_count >= 0;
  }
  __device__ const uint32_t* mask(int32_t r) const { return p.masks.Of(r, split.columns); }
  // Row r after its mask and the request's adjustments, before the division by the temperature.
  __device__ const float* adjusted(int32_t r, const SlotConstants& c) const {
    const bool changed = mask(r) != nullptr || AdjustsLogits(c, p.index.positions[r] + 1);
    return changed ? p.scratch + int64_t{r} * split.columns : p.logits.row(r);
  }
  __device__ int64_t own_block(int32_t r) const { return int64_t{r} * split.blocks + blockIdx.y; }
  __device__ IndexedKeyBits top(int32_t r) const {
    return LargestKey(largest + int64_t{r} * split.blocks, split.blocks);
  }
  __device__ RowBins bins(int32_t r, const SlotConstants& c, IndexedKeyBits top) const {
    const uint32_t key = ReduceByWarp(lowest + int64_t{r} * split.blocks, split.blocks, ~0u,
                                      [](uint32_t a, uint32_t b) { return min(a, b); });
    return RowBins(c, split.columns, LogitOf(top), FromOrderedKey(key));
  }
};

// Calls visit(v, scaled logit) for the thread's columns of chunks [begin, end) of row r.
template <class Visit>
__device__ void ForEachScaled(const SamplePlan& plan, int32_t r, const SlotConstants& c, ChunkStage& stage,
                              int32_t begin, int32_t end, const Visit& visit) {
  ForEachLogit(stage, plan.adjusted(r, c), plan.split.columns, begin, end,
               [&](int32_t v, float x) { visit(v, Scaled(c, x)); });
}
// ForEachScaled over the thread block's own chunks.
template <class Visit>
__device__ void ForEachOwnScaled(const SamplePlan& plan, int32_t r, const SlotConstants& c, ChunkStage& stage,
                                 const Visit& visit) {
  ForEachScaled(plan, r, c, stage, plan.split.first_chunk(), plan.split.end_chunk(), visit);
}

// ---- survey ----

struct SurveyShared {
  ChunkStage stage;
  IndexedKeyBits keys[kMaxWarps];
  uint32_t lowest[kMaxWarps];
  LogprobChunkShared logprobs;
};

__global__ void __launch_bounds__(kChunkThreads) SurveyLogits(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const SampleParams& p = plan.p;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = p.index.slots[r];
  if (slot < 0) return;
  const SlotConstants& c = plan.constants(slot);
  const RowSplit& split = plan.split;
  const bool greedy = plan.greedy(slot);
  if (!greedy && HasFilter(c, split.columns)) {
    ClearSelection(plan.selections[r], static_cast<int32_t>(blockIdx.y), split.blocks);
  }
  const AdjustedLogits adjusted(p.slots, slot, p.index.positions[r] + 1,
                                p.stored_drafts > 0
                                    ? DraftHistory{p.slots.drafts[slot].tokens, p.stored_drafts}
                                    : EarlierDrafts(p.ids, p.row_in_slot, r));
  const uint32_t* const mask = plan.mask(r);
  float* const kept =
      !greedy && (adjusted.applies || mask != nullptr) ? p.scratch + int64_t{r} * split.columns : nullptr;
  SurveyShared& shared = SharedStorage<SurveyShared>();
  IndexedKeyBits largest = 0;
  uint32_t lowest = ~0u;
#pragma unroll 1
  for (int32_t chunk = split.first_chunk(); chunk < split.end_chunk(); ++chunk) {
    LoadChunk(shared.stage, p.logits.row(r), split.columns, chunk);
    ForEachLoaded(shared.stage, split.columns, chunk, [&](int32_t v, float raw) {
      float x = MaskAllows(mask, v) ? adjusted(v, raw) : FromOrderedKey(kMinusInfinityKey);
      if (kept != nullptr) kept[v] = x;
      if (!greedy) x = Scaled(c, x);
      largest =
          Largest()(largest, OrderedKeyOrUnusable(raw) == kUnusableKey ? CheckedKeyOf(v, raw) : KeyOf(v, x));
      if (OrderedKey(x) > kMinusInfinityKey) lowest = min(lowest, OrderedKey(x));
    });
    if (plan.wants_logprobs(slot)) {
      SumUpRawChunk(plan.logprobs, split, r, chunk, shared.stage, shared.logprobs);
    }
  }
  largest = BlockReduce(largest, Largest(), shared.keys);
  lowest = ~BlockReduce(~lowest, Largest(), shared.lowest);
  if (threadIdx.x != 0) return;
  plan.largest[plan.own_block(r)] = largest;
  plan.lowest[plan.own_block(r)] = lowest;
}

// ---- filters ----

struct CountShared {
  ChunkStage stage;
  WeightBins<kRowBins> masses;
  uint32_t counts[kRowBins];
};

__global__ void __launch_bounds__(kChunkThreads) CountLogits(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = plan.p.index.slots[r];
  if (slot < 0 || plan.greedy(slot)) return;
  const SlotConstants& c = plan.constants(slot);
  const bool top_k = HasTopK(c, plan.split.columns);
  const bool top_p = HasTopP(c);
  if (!top_k && !top_p) return;
  const IndexedKeyBits top = plan.top(r);
  if (!IsUsable(top)) return;
  const RowBins bins = plan.bins(r, c, top);
  CountShared& shared = SharedStorage<CountShared>();
  const int32_t own = static_cast<int32_t>(threadIdx.x);
  for (int32_t bin = own; bin < kRowBins; bin += kChunkThreads) {
    shared.masses.Clear(bin);
    shared.counts[bin] = 0;
  }
  __syncthreads();
  ForEachOwnScaled(plan, r, c, shared.stage, [&](int32_t, float x) {
    const int32_t bin = bins.Of(x);
    if (top_k) atomicAdd(&shared.counts[bin], 1u);
    if (top_p) shared.masses.Add(bin, MassOf(bins.largest(), x));
  });
  __syncthreads();
  RowSelection& row = plan.selections[r];
  for (int32_t bin = own; bin < kRowBins; bin += kChunkThreads) {
    if (shared.counts[bin] != 0) atomicAdd(&row.counts[bin], shared.counts[bin]);
    if (const Weight mass = shared.masses.At(bin); mass != 0) atomicAdd(&row.masses[bin], mass);
  }
}

struct ListShared {
  ChunkStage stage;
  FilterShared filter;
};

__global__ void __launch_bounds__(kChunkThreads) ListCandidates(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = plan.p.index.slots[r];
  if (slot < 0 || plan.greedy(slot)) return;
  const SlotConstants& c = plan.constants(slot);
  if (!HasFilter(c, plan.split.columns)) return;
  const IndexedKeyBits top = plan.top(r);
  if (!IsUsable(top)) return;
  ListShared& shared = SharedStorage<ListShared>();
  RowSelection& row = plan.selections[r];
  const FilterBounds bounds = FindBounds(c, plan.split.columns, row, shared.filter);
  if (blockIdx.y == 0 && threadIdx.x == 0) row.bounds = bounds;
  const RowBins bins = plan.bins(r, c, top);
  bool full = false;
  ForEachOwnScaled(plan, r, c, shared.stage, [&](int32_t v, float x) {
    if (full || !bounds.Has(bins.Of(x))) return;
    const uint32_t index = atomicAdd(&row.candidate_count, 1u);
    full = index >= kMaxCandidates;
    if (!full) row.candidates[index] = KeyOf(v, x);
  });
}

// The key of the last token that the filters of row r keep; 0: they keep all.
__device__ IndexedKeyBits LastKeptOfRow(const SamplePlan& plan, int32_t r, const SlotConstants& c,
                                        IndexedKeyBits top, ChunkStage& stage, FilterShared& shared) {
  const RowSelection& row = plan.selections[r];
  const FilterBounds bounds = row.bounds;
  const RowBins bins = plan.bins(r, c, top);
  const uint32_t count = row.candidate_count;
  const auto for_each_candidate = [&](const auto& visit) {
    if (count <= kMaxCandidates) {
      for (uint32_t i = threadIdx.x; i < count; i += kChunkThreads) {
        visit(bins.Of(LogitOf(row.candidates[i])), row.candidates[i]);
      }
    } else {
      ForEachScaled(plan, r, c, stage, 0, plan.split.chunks, [&](int32_t v, float x) {
        const int32_t bin = bins.Of(x);
        if (bounds.Has(bin)) visit(bin, KeyOf(v, x));
      });
    }
  };
  return LastKept(c, bounds, bins.largest(), for_each_candidate, shared);
}

// ---- the draw ----

// Gumbel() of kernels/philox.h for token v of a block, with the device's logarithm.
__device__ float GumbelOf(const PhiloxBlock& block, int32_t v) {
  const uint32_t x = v % 4 == 0 ? block[0] : v % 4 == 1 ? block[1] : v % 4 == 2 ? block[2] : block[3];
  return static_cast<float>(-log(-log(UnitInterval(x))));
}

// The key of the largest logit - largest + noise over the tokens of this block's chunks up to `last_kept`;
// ties: the lowest id. The most probable token always survives, and is a candidate in every block.
__device__ IndexedKeyBits DrawOfBlock(const SamplePlan& plan, int32_t r, const SlotConstants& c,
                                      IndexedKeyBits top_key, IndexedKeyBits last_kept, ChunkStage& stage) {
  const int32_t top = IndexOf(top_key);
  const float largest = LogitOf(top_key);
  const int32_t position = plan.p.index.positions[r] + 1;
  float best_score = GumbelOf(NoiseBlock(c.seed, position, top / 4), top);
  int32_t best_id = top;
  int32_t block = -1;
  PhiloxBlock noise = {};
  ForEachOwnScaled(plan, r, c, stage, [&](int32_t v, float x) {
    const float score = x - largest;
    // Most tokens lose even with the largest possible noise: skip the generator for them.
    if (!(score + kMaxGumbel >= best_score) || v == top || KeyOf(v, x) < last_kept) return;
    if (c.min_p > 0.0f && !(Exp(score) >= c.min_p)) return;
    if (block != v / 4) {
      block = v / 4;
      noise = NoiseBlock(c.seed, position, block);
    }
    const float noisy = score + GumbelOf(noise, v);
    if (noisy > best_score || (noisy == best_score && v < best_id)) {
      best_score = noisy;
      best_id = v;
    }
  });
  return KeyOf(best_id, best_score);
}

struct DrawShared {
  ChunkStage stage;
  FilterShared filter;
  IndexedKeyBits keys[kMaxWarps];
};

__global__ void __launch_bounds__(kChunkThreads) DrawTokens(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = plan.p.index.slots[r];
  if (slot < 0 || plan.greedy(slot)) return;
  const IndexedKeyBits top = plan.top(r);
  if (!IsUsable(top)) return;
  const SlotConstants& c = plan.constants(slot);
  DrawShared& shared = SharedStorage<DrawShared>();
  IndexedKeyBits last_kept = 0;
  if (HasFilter(c, plan.split.columns))
    last_kept = LastKeptOfRow(plan, r, c, top, shared.stage, shared.filter);
  IndexedKeyBits key = DrawOfBlock(plan, r, c, top, last_kept, shared.stage);
  key = BlockReduce(key, Largest(), shared.keys);
  if (threadIdx.x == 0) plan.drawn[plan.own_block(r)] = key;
}

// A block per row; without p.logprobs, of one warp.
__global__ void __launch_bounds__(kChunkThreads) FinishRows(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const SampleParams& p = plan.p;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = p.index.slots[r];
  int32_t token = 0;
  if (slot >= 0) {
    token = TokenOf(plan.top(r));
    if (token != kNoToken && !plan.greedy(slot)) {
      token = IndexOf(LargestKey(plan.drawn + int64_t{r} * plan.split.blocks, plan.split.blocks));
    }
  }
  if (threadIdx.x == 0) p.out[r] = token;
  if (slot < 0 || token == kNoToken || !plan.wants_logprobs(slot)) return;
  WriteLogprobs(plan.logprobs, plan.split, r, p.logits.row(r), token, plan.constants(slot).logprob_count,
                p.logprobs + r, SharedStorage<LogprobShared>());
}

// Hands out the parts of one piece of memory.
class Parts {
 public:
  explicit Parts(void* memory) : memory_(reinterpret_cast<uintptr_t>(memory)) {}
  template <class T>
  void Take(T*& part, size_t count) {
    part = reinterpret_cast<T*>(memory_ + bytes_);
    bytes_ += (count * sizeof(T) + 15) / 16 * 16;
  }
  size_t bytes() const { return bytes_; }

 private:
  const uintptr_t memory_;
  size_t bytes_ = 0;
};

// Sets the plan's arrays; returns their bytes.
size_t PlaceArrays(SamplePlan& plan, void* memory) {
  Parts parts(memory);
  const size_t rows = static_cast<size_t>(plan.p.index.rows);
  parts.Take(plan.largest, rows * plan.split.blocks);
  parts.Take(plan.drawn, rows * plan.split.blocks);
  parts.Take(plan.lowest, rows * plan.split.blocks);
  parts.Take(plan.selections, rows);
  if (plan.p.logprobs == nullptr) return parts.bytes();
  parts.Take(plan.logprobs.groups, rows * plan.split.chunks * kChunkWarps);
  parts.Take(plan.logprobs.sums, rows * plan.split.chunks);
  return parts.bytes();
}

}  // namespace

void Sample(Stream& stream, const SampleParams& p) {
  CHECK_LE(p.logits.cols, kMaxVocab);
  auto& cuda = static_cast<CudaStream&>(stream);
  const int32_t rows = p.index.rows;
  SamplePlan plan = {
      .p = p,
      .split = SplitRow(rows, p.logits.cols, kSelectBlocksPerMultiprocessor * cuda.multiprocessor_count())};
  PlaceArrays(plan, cuda.Scratch(PlaceArrays(plan, nullptr)));
  Launch(stream, SurveyLogits, BlocksOfRows(rows, plan.split, sizeof(SurveyShared)), plan);
  Launch(stream, CountLogits, BlocksOfRows(rows, plan.split, sizeof(CountShared)), plan);
  Launch(stream, ListCandidates, BlocksOfRows(rows, plan.split, sizeof(ListShared)), plan);
  Launch(stream, DrawTokens, BlocksOfRows(rows, plan.split, sizeof(DrawShared)), plan);
  LaunchShape finish = {.grid = dim3(rows), .block = dim3(32)};
  if (p.logprobs != nullptr) {
    finish.block = dim3(kChunkThreads);
    finish.shared_bytes = sizeof(LogprobShared);
  }
  Launch(stream, FinishRows, finish, plan);
}

}  // namespace foredraft::cuda
