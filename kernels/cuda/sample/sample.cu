// sample (the filters are listed in kernels/cpu/sample/sample.cc) as five kernels, all but the last with
// several blocks per row (kernels/cuda/common/row_blocks.h):
//
// clang-format off
//   SurveyLogits   the row's mask and the request's adjustments; the largest and the lowest logit; per chunk, what logprobs need. A row that is not
//                  usable (kNoToken) has the largest key of all, and takes no part in what follows
//   CountLogits    logits and probabilities per bin        (rows with top-k or top-p; kernels/cuda/sample/sample_filter.h)
//   ListCandidates the keys in the bins where a filter ends        (the same rows)
//   DrawTokens     the key where the filters end; the largest logit plus noise        (sampled rows)
//   FinishRows     the token, or what a spent thinking budget forces; its logprobs (kernels/cuda/sample/logprobs.h)
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
#include "kernels/cuda/sample/largest_logit.h"
#include "kernels/cuda/sample/logit_row.h"
#include "kernels/cuda/sample/logprobs.h"
#include "kernels/cuda/sample/sample_filter.h"
#include "kernels/philox.h"
#include "kernels/rules/thinking_budget.h"

namespace foredraft::cuda {
namespace {

struct SamplePlan {
  SampleParams p;
  RowSplit split;                     // of all columns, for the logprobs
  int32_t choices;                    // columns that may be chosen; those past them read as -infinity
  IndexedKeyBits* largest = nullptr;  // [R, blocks]: keys of the scaled logits, after adjustments
  IndexedKeyBits* drawn = nullptr;    // [R, blocks]: keys of the scaled logits plus noise
  uint32_t* lowest =
      nullptr;  // [R, blocks]: OrderedKey of the lowest finite scaled logit, of rows with filters
  RowSelection* selections = nullptr;  // [R]
  LogprobArrays logprobs;              // absent without p.logprobs

  __device__ const SlotConstants& constants(int32_t slot) const { return p.slots.constants[slot]; }
  __device__ bool greedy(int32_t slot) const { return constants(slot).temperature <= 0.0f; }
  __device__ bool wants_logprobs(int32_t slot) const {
    return p.logprobs != nullptr && constants(slot).logprob_count >= 0;
  }
  __device__ const uint32_t* mask(int32_t r) const { return p.masks.Of(r, choices); }
  // Whether the row's mask or the request's adjustments change the logits of row r.
  __device__ bool changes(int32_t r, const SlotConstants& c) const {
    const SlotProgress& progress = p.slots.progress[p.index.slots[r]];
    return mask(r) != nullptr || AdjustsLogits(c, progress, p.index.positions[r] + 1);
  }
  // Row r after these changes, before the division by the temperature; not NaN if the row is usable.
  __device__ const float* adjusted(int32_t r, const SlotConstants& c) const {
    return changes(r, c) ? p.scratch + int64_t{r} * split.columns : p.logits.row(r);
  }
  __device__ int64_t own_block(int32_t r) const { return int64_t{r} * split.blocks + blockIdx.y; }
  __device__ IndexedKeyBits top(int32_t r) const {
    return LargestKey(largest + int64_t{r} * split.blocks, split.blocks);
  }
  __device__ RowBins bins(int32_t r, const SlotConstants& c, IndexedKeyBits top) const {
    const uint32_t key = ReduceByWarp(lowest + int64_t{r} * split.blocks, split.blocks, ~0u,
                                      [](uint32_t a, uint32_t b) { return min(a, b); });
    return RowBins(c, choices, LogitOf(top), FromOrderedKey(key));
  }
};

// Calls visit(v, four logits from column v on) for the thread's columns of the block's chunks of row r.
template <class Visit>
__device__ void ForEachOwnFour(const SamplePlan& plan, int32_t r, const SlotConstants& c, ChunkStage& stage,
                               const Visit& visit) {
  ForEachFour(stage, plan.adjusted(r, c), plan.choices, plan.split.first_chunk(), plan.split.end_chunk(),
              visit);
}
__device__ __forceinline__ float LargestOf4(const float (&x)[4]) {
  return max(max(x[0], x[1]), max(x[2], x[3]));
}

// four[i], by selects: an array indexed at run time would lie in local memory.
template <class Four>
__device__ __forceinline__ auto ElementOf(const Four& four, int32_t i) {
  return i == 0 ? four[0] : i == 1 ? four[1] : i == 2 ? four[2] : four[3];
}

// ---- survey ----

struct SurveyShared {
  ChunkStage stage;
  LargestShared largest;
  uint32_t lowest[kMaxWarps];
  LogprobChunkShared logprobs;
};

// The lowest finite logit of the thread's columns in the stage; +infinity: none.
__device__ float LowestFinite(const ChunkStage& stage) {
  float lowest = -kMinusInfinity;
#pragma unroll
  for (int piece = 0; piece < kChunkPieces; ++piece) {
    const float4 four = stage.pieces[piece][threadIdx.x];
    for (const float x : {four.x, four.y, four.z, four.w}) {
      if (x > kMinusInfinity) lowest = min(lowest, x);
    }
  }
  return lowest;
}

// Replaces the thread's logits of row r in the stage by the masked and adjusted ones, and keeps these for the
// next kernels. Returns whether the raw logits are usable.
__device__ bool AdjustRow(const SamplePlan& plan, int32_t r, int32_t slot, int32_t chunk, ChunkStage& stage) {
  const SampleParams& p = plan.p;
  const AdjustedLogits adjusted(p.slots, slot, p.index.positions[r] + 1, p.drafts_before(r));
  const uint32_t* const mask = plan.mask(r);
  float* const kept = plan.greedy(slot) ? nullptr : p.scratch + int64_t{r} * plan.split.columns;
  return AdjustChunk(stage, plan.choices, chunk, [&](int32_t v, float raw) {
    float x = MaskAllows(mask, v) ? adjusted(v, raw) : kMinusInfinity;
    if (x != x) x = kMinusInfinity;
    if (kept != nullptr) kept[v] = x;
    return x;
  });
}

__global__ void __launch_bounds__(kChunkThreads) SurveyLogits(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const SampleParams& p = plan.p;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = p.index.slots[r];
  if (slot < 0) return;
  const SlotConstants& c = plan.constants(slot);
  const RowSplit& split = plan.split;
  const bool greedy = plan.greedy(slot);
  const bool filtered = !greedy && HasFilter(c, plan.choices);
  if (filtered) ClearSelection(plan.selections[r], static_cast<int32_t>(blockIdx.y), split.blocks);
  const float* const raw = p.logits.row(r);
  const bool changed = plan.changes(r, c);
  const float temperature = c.temperature;
  const auto scale = [&](float x) { return greedy ? x : Scaled(temperature, x); };
  SurveyShared& shared = SharedStorage<SurveyShared>();
  LargestLogit largest(split.first_chunk());
  float lowest = -kMinusInfinity;  // scaled
#pragma unroll 1
  for (int32_t chunk = split.first_chunk(); chunk < split.end_chunk(); ++chunk) {
    if (plan.wants_logprobs(slot)) {
      LoadChunk(shared.stage, raw, split.columns, chunk);
      SumUpRawChunk(plan.logprobs, split, r, chunk, shared.stage, shared.logprobs);
      if ((chunk + 1) * kChunkColumns > plan.choices) LoadChunk(shared.stage, raw, plan.choices, chunk);
    } else {
      LoadChunk(shared.stage, raw, plan.choices, chunk);
    }
    if (changed && !AdjustRow(plan, r, slot, chunk, shared.stage)) largest.MarkUnusable();
    largest.AddChunk(shared.stage, chunk, changed, scale);
    if (filtered) {
      const float scaled = scale(LowestFinite(shared.stage));
      if (scaled > kMinusInfinity) lowest = min(lowest, scaled);
    }
  }
  const auto load = [&](int32_t chunk) {
    LoadChunk(shared.stage, raw, plan.choices, chunk);
    if (changed) AdjustRow(plan, r, slot, chunk, shared.stage);
  };
  const IndexedKeyBits key =
      largest.KeyOfBlock(shared.stage, split.end_chunk() - 1, scale, load, shared.largest);
  if (threadIdx.x == 0) plan.largest[plan.own_block(r)] = key;
  if (!filtered) return;
  const uint32_t lowest_key = lowest < -kMinusInfinity ? OrderedKey(lowest) : ~0u;
  const uint32_t lowest_of_block = ~BlockReduce(~lowest_key, Largest(), shared.lowest);
  if (threadIdx.x == 0) plan.lowest[plan.own_block(r)] = lowest_of_block;
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
  const bool top_k = HasTopK(c, plan.choices);
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
  const float temperature = c.temperature;
  ForEachOwnFour(plan, r, c, shared.stage, [&](int32_t v, const float(&logits)[4]) {
    float x[4];
    Scale4(temperature, logits, x);
    int32_t own_bins[4];
    Weight own_masses[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      own_bins[i] = bins.Of(x[i]);
      if (top_p) own_masses[i] = MassOf(bins.largest(), x[i]);  // of -infinity, past the last column: 0
    }
    if (top_p) shared.masses.Add(own_bins, own_masses);
    if (!top_k) return;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (v + i < plan.choices) atomicAdd(&shared.counts[own_bins[i]], 1u);
    }
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
  if (!HasFilter(c, plan.choices)) return;
  const IndexedKeyBits top = plan.top(r);
  if (!IsUsable(top)) return;
  ListShared& shared = SharedStorage<ListShared>();
  RowSelection& row = plan.selections[r];
  const FilterBounds bounds = FindBounds(c, plan.choices, row, shared.filter);
  if (blockIdx.y == 0 && threadIdx.x == 0) row.bounds = bounds;
  const RowBins bins = plan.bins(r, c, top);
  const int32_t last_bin = max(bounds.k_bin, bounds.last_p_bin);
  const float temperature = c.temperature;
  bool full = false;
  ForEachOwnFour(plan, r, c, shared.stage, [&](int32_t v, const float(&logits)[4]) {
    // Bins are in descending order of logits.
    if (full || bins.Of(Scaled(temperature, LargestOf4(logits))) > last_bin) return;
#pragma unroll 1
    for (int i = 0; i < 4; ++i) {
      const float x = Scaled(temperature, ElementOf(logits, i));
      if (full || v + i >= plan.choices || !bounds.Has(bins.Of(x))) continue;
      const uint32_t index = atomicAdd(&row.candidate_count, 1u);
      full = index >= kMaxCandidates;
      if (!full) row.candidates[index] = KeyOf(v + i, x);
    }
  });
}

// The key of the last token that the filters of row r keep; 0: they keep all.
__device__ IndexedKeyBits LastKeptOfRow(const SamplePlan& plan, int32_t r, const SlotConstants& c,
                                        IndexedKeyBits top, ChunkStage& stage, FilterShared& shared) {
  const RowSelection& row = plan.selections[r];
  if (threadIdx.x == 0) shared.bounds = row.bounds;  // in registers, it would leave too few of 64
  __syncthreads();
  const FilterBounds& bounds = shared.bounds;
  const RowBins bins = plan.bins(r, c, top);
  const uint32_t count = row.candidate_count;
  const int32_t columns = plan.choices;
  const auto for_each_candidate = [&](const auto& visit) {
    if (count <= kMaxCandidates) {
#pragma unroll 1
      for (uint32_t i = threadIdx.x; i < count; i += kChunkThreads) {
        visit(bins.Of(LogitOf(row.candidates[i])), row.candidates[i]);
      }
    } else {
      ForEachFour(stage, plan.adjusted(r, c), columns, 0, plan.split.chunks,
                  [&](int32_t v, const float(&logits)[4]) {
#pragma unroll 1
                    for (int32_t i = 0; i < 4 && v + i < columns; ++i) {
                      const float x = Scaled(c.temperature, ElementOf(logits, i));
                      const int32_t bin = bins.Of(x);
                      if (bounds.Has(bin)) visit(bin, KeyOf(v + i, x));
                    }
                  });
    }
  };
  return LastKept(c, bounds, bins.largest(), for_each_candidate, shared);
}

// ---- the draw ----

// Gumbel() of kernels/philox.h with the device's logarithm.
__device__ float GumbelOf(uint32_t x) { return static_cast<float>(-log(-log(UnitInterval(x)))); }

// An upper bound of GumbelOf(x): as -log u >= 1 - u, the noise is at most -log(1 - u), and 1 - u is
// (~x + 0.5) 2^-32. The errors of the approximate logarithm and of all roundings, here and in GumbelOf, are
// together below 1e-4; ten times that is added.
__device__ __forceinline__ float GumbelBound(uint32_t x) {
  constexpr float kLn2 = 0.693147181f;
  return (32.0f * kLn2 + 1e-3f) - kLn2 * __log2f(static_cast<float>(~x) + 0.5f);
}

// The key of the largest (logit - largest + noise) over this block's tokens whose keys are at least
// `last_kept`; ties: the lowest id. The most probable token always survives, and is a candidate in every
// block.
//
// Most tokens lose to the best that their warp has found so far, and are skipped four at a time: many even
// with the largest possible noise, before the generator runs, and most others by GumbelBound, before
// GumbelOf's logarithms.
__device__ IndexedKeyBits DrawOfBlock(const SamplePlan& plan, int32_t r, const SlotConstants& c,
                                      IndexedKeyBits top_key, IndexedKeyBits last_kept, ChunkStage& stage) {
  const int32_t top = IndexOf(top_key);
  const float largest = LogitOf(top_key);
  const float last_logit = last_kept != 0 ? LogitOf(last_kept) : kMinusInfinity;
  const int32_t position = plan.p.index.positions[r] + 1;
  const uint64_t seed = c.seed;
  const float temperature = c.temperature, min_p = c.min_p;
  const PhiloxBlock top_noise = NoiseBlock(seed, position, top / 4);
  float best_score = GumbelOf(ElementOf(top_noise, top % 4));
  int32_t best_id = top;
  float to_beat = best_score;  // of the warp
  ForEachOwnFour(plan, r, c, stage, [&](int32_t v, const float(&logits)[4]) {
    const float most = Scaled(temperature, LargestOf4(logits));
    PhiloxBlock noise = {};
    bool may_win = most >= last_logit && (most - largest) + kMaxGumbel >= to_beat;
    if (may_win) {
      noise = NoiseBlock(seed, position, v / 4);
      const uint32_t most_noise = max(max(noise[0], noise[1]), max(noise[2], noise[3]));
      may_win = (most - largest) + GumbelBound(most_noise) >= to_beat;
    }
    if (!__any_sync(kAllLanes, may_win)) return;
      // Logarithms in double take about a microsecond, so only tokens that may beat the whole warp's best so
      // far get them.
#pragma unroll 1
    for (int32_t i = 0; i < 4; ++i) {
      const uint32_t output = ElementOf(noise, i);
      const float x = Scaled(temperature, ElementOf(logits, i));
      const float score = x - largest;
      const bool drawn = may_win && score + GumbelBound(output) >= to_beat && v + i != top &&
                         KeyOf(v + i, x) >= last_kept && (!(min_p > 0.0f) || Exp(score) >= min_p);
      if (!__any_sync(kAllLanes, drawn)) continue;
      const float noisy = drawn ? score + GumbelOf(output) : kMinusInfinity;
      if (noisy > best_score || (noisy == best_score && v + i < best_id)) {
        best_score = noisy;
        best_id = v + i;
      }
      to_beat = FromOrderedKey(__reduce_max_sync(kAllLanes, OrderedKey(best_score)));
    }
  });
  return KeyOf(best_id, best_score);
}

struct DrawShared {
  ChunkStage stage;
  FilterShared filter;
  IndexedKeyBits keys[kMaxWarps];
};

__global__ void __launch_bounds__(kChunkThreads, kSelectBlocksPerMultiprocessor)
    DrawTokens(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = plan.p.index.slots[r];
  if (slot < 0 || plan.greedy(slot)) return;
  IndexedKeyBits top = plan.top(r);
  if (!IsUsable(top)) return;
  const SlotConstants& c = plan.constants(slot);
  DrawShared& shared = SharedStorage<DrawShared>();
  IndexedKeyBits last_kept = 0;
  if (HasFilter(c, plan.choices)) {
    last_kept = LastKeptOfRow(plan, r, c, top, shared.stage, shared.filter);
    __syncthreads();    // the compiler holds nothing across it that would not fit 64 registers
    top = plan.top(r);  // as before
  }
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
    const int32_t forced = ForcedBehind(p.slots, slot, p.drafts_before(r));
    if (token != kNoToken && forced != kNoToken) token = forced;
  }
  if (threadIdx.x == 0) p.out[r] = token;
  if (slot < 0 || token == kNoToken || !plan.wants_logprobs(slot)) return;
  const int32_t draft_row = p.draft_row(r);
  WriteLogprobs(plan.logprobs, plan.split, r, p.logits.row(r), token,
                draft_row < 0 ? token : p.ids[draft_row], plan.constants(slot).logprob_count, p.logprobs + r,
                SharedStorage<LogprobShared>());
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
      .split = SplitRow(rows, p.logits.cols, kSelectBlocksPerMultiprocessor * cuda.multiprocessor_count()),
      .choices = p.choices()};
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
