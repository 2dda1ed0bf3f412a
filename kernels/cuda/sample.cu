// sample (the filters are listed in kernels/cpu/sample.cc) as several kernels: penalties and maximum, by
// chunks; filters and logprobs, a block per row; the draw, by chunks; the choice. Ties, filter boundaries and
// noise equal the CPU's, with two exceptions. Probabilities are summed in fixed point, with 2^44 for the most
// probable token, so a token within V 2^-44 (2^-27 for 129,280) of top-p's boundary may fall on the other
// side of it. And the noise uses CUDA's logarithms, which are within one unit in the last place of a double
// before rounding to float.

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/logit_row.h"
#include "kernels/cuda/ordered_key.h"
#include "kernels/cuda/ptx.h"
#include "kernels/cuda/radix_select.h"
#include "kernels/exp.h"
#include "kernels/philox.h"

namespace foredraft::cuda {
namespace {

constexpr float kMassOne = 0x1p44f;     // of the most probable token
constexpr int32_t kMaxVocab = 1 << 19;  // the sum of as many kMassOne fits a Weight
// Coarse bins are 1/64 nat wide, counted from the largest logit down. The last begins 32 nats below it, where
// masses are 0.
constexpr float kBinsPerNat = 64.0f;
constexpr int32_t kNoLimit = 0x7fffffff;
constexpr int kLogprobThreads = 512;  // more threads would leave too few registers for each

struct SampleShared {
  SelectShared select;
  unsigned long long keys[kMaxWarps];
  Weight masses[kMaxWarps];
  double sums[kMaxWarps];
  int32_t top_count;  // length of the next two arrays
  int32_t top_ids[kMaxLogprobs];
  float top_logits[kMaxLogprobs];
};

// ---- filters ----

// The tokens that are left: those with a larger key, and those with this key and an id up to last_id.
struct Survivors {
  uint32_t key = 0;
  int32_t last_id = kNoLimit;

  __device__ bool Has(uint32_t other, int32_t v) const {
    return other > key || (other == key && v <= last_id);
  }
};

__device__ int32_t CoarseBin(float largest, float logit) {
  const float bin = (largest - logit) * kBinsPerNat;
  return bin < static_cast<float>(kLastBin) ? static_cast<int32_t>(bin) : kLastBin;  // NaN: the last
}

__device__ Weight MassOf(float largest, float logit) {
  const float mass = Exp(logit - largest);
  return mass > 0.0f ? static_cast<Weight>(mass * kMassOne) : 0;  // NaN: 0
}

// Keeps the `wanted` lowest ids of the `found` tokens that have `key`.
__device__ Survivors KeepTies(const float* logits, int32_t vocab, uint32_t key, Weight wanted, Weight found,
                              SampleShared& shared) {
  if (wanted >= found) return {key, kNoLimit};
  const Selected last = Select(shared.select, wanted, [&](const auto& visit) {
    ForEachLogit(logits, vocab, [&](int32_t v, float x) {
      if (OrderedKey(x) == key) visit(0, ~static_cast<uint32_t>(v), 1);
    });
  });
  return {key, static_cast<int32_t>(~last.key)};
}

// Keeps the k largest; ties: the lower id.
__device__ Survivors KeepTopK(const float* logits, float largest, int32_t vocab, int32_t k,
                              SampleShared& shared) {
  const Weight wanted = static_cast<Weight>(k);
  const Selected at_k = Select(shared.select, wanted, [&](const auto& visit) {
    ForEachLogit(logits, vocab, [&](int32_t, float x) { visit(CoarseBin(largest, x), OrderedKey(x), 1); });
  });
  return KeepTies(logits, vocab, at_k.key, wanted - at_k.above, at_k.at, shared);
}

// Keeps the shortest prefix of `left`, in order of probability, that has p of its mass.
__device__ Survivors KeepTopP(const float* logits, float largest, int32_t vocab, float p,
                              const Survivors& left, SampleShared& shared) {
  Weight total = 0;
  ForEachLogit(logits, vocab, [&](int32_t v, float x) {
    if (left.Has(OrderedKey(x), v)) total += MassOf(largest, x);
  });
  total = BlockReduce(total, Sum(), shared.masses);
  const Weight wanted = static_cast<Weight>(ceil(static_cast<double>(p) * static_cast<double>(total)));
  // Tokens that top-k excluded come after all of `left`, so they need not be skipped here.
  const Weight target = max(wanted, Weight{1});
  const Selected at_p = Select(shared.select, target, [&](const auto& visit) {
    ForEachLogit(logits, vocab,
                 [&](int32_t, float x) { visit(CoarseBin(largest, x), OrderedKey(x), MassOf(largest, x)); });
  });
  const Weight mass = MassOf(largest, FromOrderedKey(at_p.key));
  if (mass == 0) return left;  // by rounding, the boundary is past the last token with a mass above 0
  const Survivors kept =
      KeepTies(logits, vocab, at_p.key, (target - at_p.above + mass - 1) / mass, at_p.at / mass, shared);
  // The intersection with `left`, which may cut the same key at a lower id.
  return kept.key == left.key  ? Survivors{kept.key, min(kept.last_id, left.last_id)}
         : kept.key > left.key ? kept
                               : left;
}

// ---- the draw ----

// Gumbel() of kernels/philox.h for token v of a block, with the device's logarithm.
__device__ float GumbelOf(const PhiloxBlock& block, int32_t v) {
  const uint32_t x = v % 4 == 0 ? block[0] : v % 4 == 1 ? block[1] : v % 4 == 2 ? block[2] : block[3];
  return static_cast<float>(-log(-log(UnitInterval(x))));
}

// The key of the largest logit - largest + noise over the survivors of this block's chunk; ties: the lowest
// id. `top`, the most probable token, always survives, and is a candidate in every chunk.
__device__ unsigned long long DrawOfChunk(const SlotConstants& c, const float* logits, int32_t vocab,
                                          int32_t top, int32_t position, const Survivors& survivors) {
  const float largest = logits[top];
  float best_score = GumbelOf(NoiseBlock(c.seed, position, top / 4), top);
  int32_t best_id = top;
  int32_t block = -1;
  PhiloxBlock noise = {};
  ForEachLogitOfChunk(logits, vocab, [&](int32_t v, float x) {
    const float score = x - largest;
    // Most tokens lose even with the largest possible noise: skip the generator for them.
    if (!(score + kMaxGumbel >= best_score) || v == top || !survivors.Has(OrderedKey(x), v)) return;
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
  return IndexedKey(OrderedKey(best_score), best_id);
}

// ---- logprobs ----

__device__ void WriteTopLogprobs(const float* logits, float largest, int32_t vocab, double log_sum,
                                 LogprobOutput* out, SampleShared& shared) {
  const int32_t count = out->top_count;
  const Survivors top = KeepTopK(logits, largest, vocab, count, shared);
  if (threadIdx.x == 0) shared.top_count = 0;
  __syncthreads();
  ForEachLogit(logits, vocab, [&](int32_t v, float x) {
    if (!top.Has(OrderedKey(x), v)) return;
    const int32_t index = atomicAdd(&shared.top_count, 1);  // in any order: sorted below
    shared.top_ids[index] = v;
    shared.top_logits[index] = x;
  });
  __syncthreads();
  const int32_t own = static_cast<int32_t>(threadIdx.x);
  if (own >= count) return;
  const auto key = [&](int32_t i) { return IndexedKey(OrderedKey(shared.top_logits[i]), shared.top_ids[i]); };
  int32_t rank = 0;
  for (int32_t i = 0; i < count; ++i) rank += key(i) > key(own) ? 1 : 0;
  out->top_ids[rank] = shared.top_ids[own];
  out->top_logprobs[rank] = static_cast<float>(static_cast<double>(shared.top_logits[own]) - log_sum);
}

// Logprobs of the raw logits.
__device__ void WriteLogprobs(const float* logits, int32_t vocab, int32_t token, int32_t top_count,
                              LogprobOutput* out, SampleShared& shared) {
  unsigned long long best = 0;
  ForEachLogit(logits, vocab, [&](int32_t v, float x) {
    best = Largest()(best, static_cast<unsigned long long>(IndexedKey(OrderedKey(x), v)));
  });
  const float largest = logits[IndexOf(BlockReduce(best, Largest(), shared.keys))];
  double sum = 0.0;
  ForEachLogit(logits, vocab, [&](int32_t, float x) { sum += static_cast<double>(Exp(x - largest)); });
  const double log_sum = static_cast<double>(largest) + log(BlockReduce(sum, Sum(), shared.sums));
  if (threadIdx.x == 0) {
    out->token_id = token;
    out->logprob = static_cast<float>(static_cast<double>(logits[token]) - log_sum);
    out->top_count = min(min(top_count, vocab), kMaxLogprobs);
  }
  __syncthreads();
  if (out->top_count > 0) WriteTopLogprobs(logits, largest, vocab, log_sum, out, shared);
}

// ---- the kernels ----

struct SamplePlan {
  SampleParams p;
  unsigned long long* largest;  // [R, chunks]: keys of the scaled logits, after penalties
  unsigned long long* drawn;    // [R, chunks]: keys of the scaled logits plus noise
  Survivors* survivors;         // [R]
  int32_t chunks;

  __device__ const SlotConstants& constants(int32_t slot) const { return p.slots.constants[slot]; }
  __device__ bool greedy(int32_t slot) const { return constants(slot).temperature <= 0.0f; }
  __device__ float* scaled(int32_t r) const { return p.scratch + int64_t{r} * p.logits.cols; }
  __device__ int32_t top(int32_t r) const {
    return IndexOf(LargestOfChunks(largest + int64_t{r} * chunks, chunks));
  }
};

struct ChunkShared {
  unsigned long long keys[kMaxWarps];
};

__global__ void __launch_bounds__(kChunkThreads) ScaleLogits(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const SampleParams& p = plan.p;
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = p.index.slots[r];
  if (slot < 0) return;
  const float temperature = plan.constants(slot).temperature;
  const bool greedy = plan.greedy(slot);
  float* const scaled = plan.scaled(r);
  const PenalisedLogits penalised(p.slots, slot,
                                  p.stored_drafts > 0
                                      ? DraftHistory{p.slots.drafts[slot].tokens, p.stored_drafts}
                                      : EarlierDrafts(p.ids, p.row_in_slot, r));
  unsigned long long best = 0;
  ForEachLogitOfChunk(p.logits.row(r), p.logits.cols, [&](int32_t v, float x) {
    x = penalised(v, x);
    if (!greedy) {
      x /= temperature;
      if (x != x) x = FromOrderedKey(kMinusInfinityKey);
      scaled[v] = x;
    }
    best = Largest()(best, static_cast<unsigned long long>(IndexedKey(OrderedKey(x), v)));
  });
  best = BlockReduce(best, Largest(), SharedStorage<ChunkShared>().keys);
  if (threadIdx.x == 0) plan.largest[int64_t{r} * plan.chunks + blockIdx.y] = best;
}

__global__ void __launch_bounds__(kMaxRowThreads) FilterLogits(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = plan.p.index.slots[r];
  if (slot < 0 || plan.greedy(slot)) return;
  const SlotConstants& c = plan.constants(slot);
  const int32_t vocab = plan.p.logits.cols;
  const float* const logits = plan.scaled(r);
  const float largest = logits[plan.top(r)];
  SampleShared& shared = SharedStorage<SampleShared>();
  Survivors survivors;
  if (c.top_k > 0 && c.top_k < vocab) survivors = KeepTopK(logits, largest, vocab, c.top_k, shared);
  if (c.top_p < 1.0f) survivors = KeepTopP(logits, largest, vocab, c.top_p, survivors, shared);
  if (threadIdx.x == 0) plan.survivors[r] = survivors;
}

__global__ void __launch_bounds__(kChunkThreads) DrawTokens(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = plan.p.index.slots[r];
  if (slot < 0 || plan.greedy(slot)) return;
  unsigned long long key = DrawOfChunk(plan.constants(slot), plan.scaled(r), plan.p.logits.cols, plan.top(r),
                                       plan.p.index.positions[r] + 1, plan.survivors[r]);
  key = BlockReduce(key, Largest(), SharedStorage<ChunkShared>().keys);
  if (threadIdx.x == 0) plan.drawn[int64_t{r} * plan.chunks + blockIdx.y] = key;
}

// A warp per row.
__global__ void __launch_bounds__(32) ChooseTokens(const __grid_constant__ SamplePlan plan) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = plan.p.index.slots[r];
  int32_t token = 0;
  if (slot >= 0) {
    const unsigned long long* const keys = plan.greedy(slot) ? plan.largest : plan.drawn;
    token = IndexOf(LargestOfChunks(keys + int64_t{r} * plan.chunks, plan.chunks));
  }
  if (threadIdx.x == 0) plan.p.out[r] = token;
}

__global__ void __launch_bounds__(kLogprobThreads) LogprobsOfRows(const __grid_constant__ SampleParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = p.index.slots[r];
  if (slot < 0) return;
  const int32_t count = p.slots.constants[slot].logprob_count;
  if (count < 0) return;
  WriteLogprobs(p.logits.row(r), p.logits.cols, p.out[r], count, p.logprobs + r,
                SharedStorage<SampleShared>());
}

}  // namespace

void Sample(Stream& stream, const SampleParams& p) {
  CHECK_LE(p.logits.cols, kMaxVocab);
  const int32_t rows = p.index.rows;
  SamplePlan plan = {.p = p, .chunks = ChunksOf(p.logits.cols)};
  const size_t keys = static_cast<size_t>(rows) * plan.chunks;
  void* const memory =
      static_cast<CudaStream&>(stream).Scratch(2 * keys * sizeof(*plan.largest) + rows * sizeof(Survivors));
  plan.largest = static_cast<unsigned long long*>(memory);
  plan.drawn = plan.largest + keys;
  plan.survivors = reinterpret_cast<Survivors*>(plan.drawn + keys);
  const LaunchShape chunks = BlockPerChunk(rows, p.logits.cols, sizeof(ChunkShared));
  const LaunchShape whole = {
      .grid = dim3(rows), .block = dim3(ThreadsPerRow(p.logits.cols)), .shared_bytes = sizeof(SampleShared)};
  Launch(stream, ScaleLogits, chunks, plan);
  Launch(stream, FilterLogits, whole, plan);
  Launch(stream, DrawTokens, chunks, plan);
  Launch(stream, ChooseTokens, {.grid = dim3(rows), .block = dim3(32)}, plan);
  if (p.logprobs == nullptr) return;
  LaunchShape logprobs = whole;
  logprobs.block = dim3(std::min(ThreadsPerRow(p.logits.cols), kLogprobThreads));
  Launch(stream, LogprobsOfRows, logprobs, p);
}

}  // namespace foredraft::cuda
