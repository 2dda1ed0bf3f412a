#pragma once

// The filters top-k and top-p of sample (kernels/cpu/sample/sample.cc): which tokens of a row they keep.
//
// Tokens are in one order, by IndexedKey (larger logit first, then the lower id), and both filters keep a
// prefix of it. So the last kept key says what a row keeps. The row's blocks find it in two steps:
//   1. Logits are counted in kRowBins bins, with the sum of their probabilities. That shows in which bins the
//      prefixes end.
//   2. The keys in these bins, the candidates, are listed. A list is short (some hundred keys of R1's
//      vocabulary), so every block that needs the row's key finds it from the list by itself.
// A row with more candidates than a list holds (nearly equal logits) is read again instead.
//
// Probabilities are in fixed point, kMassOne for the most probable token. All sums are of integers, so
// neither the bins, nor the blocks, nor the order of the list changes a result.

#include <cstdint>

#include "kernels/cuda/common/radix_select.h"
#include "kernels/cuda/sample/logit_row.h"
#include "kernels/exp.h"
#include "kernels/slot_arrays.h"

namespace foredraft::cuda {

inline constexpr float kMassOne = 0x1p44f;     // of the most probable token
inline constexpr float kMassNats = 31.0f;      // masses are 0 from ln kMassOne = 30.5 nats below it
inline constexpr int32_t kMaxVocab = 1 << 19;  // the sum of as many kMassOne fits a Weight

inline constexpr int32_t kRowBins = 2048;
inline constexpr float kBinnedNats = 64.0f;  // at most, of logits before the division by the temperature
inline constexpr uint32_t kMaxCandidates = 2048;
inline constexpr int32_t kBinsPerThread = kRowBins / kChunkThreads;
static_assert(kChunkThreads == kSelectThreads);

__device__ __forceinline__ bool HasTopK(const SlotConstants& c, int32_t vocab) {
  return c.top_k > 0 && c.top_k < vocab;
}
__device__ __forceinline__ bool HasTopP(const SlotConstants& c) { return c.top_p < 1.0f; }
__device__ __forceinline__ bool HasFilter(const SlotConstants& c, int32_t vocab) {
  return HasTopK(c, vocab) || HasTopP(c);
}

__device__ __forceinline__ float Scaled(float temperature, float logit) {
  const float scaled = logit / temperature;
  return scaled == scaled ? scaled : FromOrderedKey(kMinusInfinityKey);
}
// Scaled of four logits, none of which is NaN; skips the divisions for temperature 1, which most requests
// have.
__device__ __forceinline__ void Scale4(float temperature, const float (&logits)[4], float (&scaled)[4]) {
  if (temperature == 1.0f) {
#pragma unroll
    for (int i = 0; i < 4; ++i) scaled[i] = logits[i];
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) scaled[i] = Scaled(temperature, logits[i]);
  }
}

__device__ __forceinline__ Weight MassOf(float largest, float logit) {
  const float mass = Exp(logit - largest);
  return mass > 0.0f ? static_cast<Weight>(mass * kMassOne) : 0;  // NaN: 0
}

// The least mass of a prefix that has probability p, where all tokens together have mass `total`.
__device__ __forceinline__ Weight MassTarget(float p, Weight total) {
  const double target = ceil(static_cast<double>(p) * static_cast<double>(total));
  return max(static_cast<Weight>(target), Weight{1});
}

// Bins of equal width from the largest logit down; the last bin has all lower logits.
class RowBins {
 public:
  // `lowest` is the lowest finite logit, or NaN. A smaller span gives finer bins, hence fewer candidates.
  __device__ RowBins(const SlotConstants& c, int32_t vocab, float largest, float lowest) : largest_(largest) {
    float span = min(largest - lowest, kBinnedNats / c.temperature);
    if (!HasTopK(c, vocab)) span = min(span, kMassNats);
    per_logit_ = span > 0.0f ? static_cast<float>(kRowBins - 1) / span : 0.0f;
  }

  __device__ int32_t Of(float logit) const {
    const float bin = (largest_ - logit) * per_logit_;
    return bin < static_cast<float>(kRowBins - 1) ? static_cast<int32_t>(bin)
                                                  : kRowBins - 1;  // NaN: the last
  }
  __device__ float largest() const { return largest_; }

 private:
  float largest_;
  float per_logit_;
};

// Where the prefixes end.
struct FilterBounds {
  int32_t k_bin = -1;  // the bin of the last token that top-k keeps; -1: no top-k
  Weight k_rank = 0;   // this token's rank in the bin, from 1
  Weight k_mass = 0;   // the mass of the bins before

  int32_t first_p_bin = 0;  // the bins that may have the last token that top-p keeps
  int32_t last_p_bin = -1;  // below first_p_bin: top-p keeps all
  Weight p_mass = 0;        // the mass of the bins before

  Weight mass = 0;  // of the row, without top-k

  __device__ bool HasP(int32_t bin) const { return bin >= first_p_bin && bin <= last_p_bin; }
  __device__ bool Has(int32_t bin) const { return bin == k_bin || HasP(bin); }
};

// What the blocks of a row share, in device memory. The first three start as 0.
struct RowSelection {
  uint32_t counts[kRowBins];
  Weight masses[kRowBins];
  uint32_t candidate_count;  // above kMaxCandidates: the list is not complete
  FilterBounds bounds;
  IndexedKeyBits candidates[kMaxCandidates];  // in any order
};

struct FilterShared {
  FilterBounds bounds;
  SelectShared select;
  Weight masses[kMaxWarps];
};

// Clears this block's part of the bins: it is block `block` of the row's `blocks`.
__device__ inline void ClearSelection(RowSelection& row, int32_t block, int32_t blocks) {
  for (int32_t bin = block * kChunkThreads + static_cast<int32_t>(threadIdx.x); bin < kRowBins;
       bin += blocks * kChunkThreads) {
    row.counts[bin] = 0;
    row.masses[bin] = 0;
  }
  if (block == 0 && threadIdx.x == 0) row.candidate_count = 0;
}

// Called by all threads of a block, after all blocks have counted.
__device__ inline FilterBounds FindBounds(const SlotConstants& c, int32_t vocab, const RowSelection& row,
                                          FilterShared& shared) {
  FilterBounds bounds;
  const int32_t first = static_cast<int32_t>(threadIdx.x) * kBinsPerThread;
  Weight masses[kBinsPerThread];
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) masses[i] = row.masses[first + i];
  Weight k_bin_mass = 0;
  if (HasTopK(c, vocab)) {
    Weight counts[kBinsPerThread];
#pragma unroll
    for (int i = 0; i < kBinsPerThread; ++i) counts[i] = row.counts[first + i];
    const FoundBin at_k = FindBin(counts, static_cast<Weight>(c.top_k), shared.select.find);
    bounds.k_bin = at_k.bin;
    bounds.k_rank = static_cast<Weight>(c.top_k) - at_k.above;
    k_bin_mass = row.masses[at_k.bin];
  }
  if (!HasTopP(c)) return bounds;
  Weight before_k_bin = 0;
  Weight all = 0;
#pragma unroll
  for (int i = 0; i < kBinsPerThread; ++i) {
    before_k_bin += first + i < bounds.k_bin ? masses[i] : 0;
    all += masses[i];
  }
  bounds.k_mass = BlockReduce(before_k_bin, Sum(), shared.masses);
  bounds.mass = BlockReduce(all, Sum(), shared.masses);
  // With top-k, top-p keeps a share of the mass that top-k keeps, which is known only to within the bin where
  // top-k ends.
  const Weight least = bounds.k_bin < 0 ? bounds.mass : bounds.k_mass;
  const Weight most = bounds.k_bin < 0 ? bounds.mass : bounds.k_mass + k_bin_mass;
  const FoundBin low = FindBin(masses, MassTarget(c.top_p, least), shared.select.find);
  const FoundBin high = FindBin(masses, MassTarget(c.top_p, most), shared.select.find);
  if (low.bin >= 0 && high.bin >= 0) {
    bounds.first_p_bin = low.bin;
    bounds.last_p_bin = high.bin;
    bounds.p_mass = low.above;
  }
  return bounds;
}

// The key of the last token that the filters keep; 0: they keep all. for_each(visit) calls visit(bin, key)
// for the calling thread's candidates, the same every time. Called by all threads of a block; returns the key
// to all.
template <class ForEach>
__device__ IndexedKeyBits LastKept(const SlotConstants& c, const FilterBounds& bounds, float largest,
                                   const ForEach& for_each, FilterShared& shared) {
  IndexedKeyBits last = 0;
  Weight mass = bounds.mass;
  if (bounds.k_bin >= 0) {
    last = SelectKey(shared.select, bounds.k_rank, [&](const auto& visit) {
      for_each([&](int32_t bin, IndexedKeyBits key) {
        if (bin == bounds.k_bin) visit(key, Weight{1});
      });
    });
  }
  if (bounds.last_p_bin < bounds.first_p_bin) return last;
  if (bounds.k_bin >= 0) {
    Weight kept = 0;
    for_each([&](int32_t bin, IndexedKeyBits key) {
      if (bin == bounds.k_bin && key >= last) kept += MassOf(largest, LogitOf(key));
    });
    mass = bounds.k_mass + BlockReduce(kept, Sum(), shared.masses);
  }
  // Tokens that top-k excludes come after all that it keeps, so they may be among the elements.
  const Weight target = MassTarget(c.top_p, mass) - bounds.p_mass;
  const IndexedKeyBits last_of_p = SelectKey(shared.select, target, [&](const auto& visit) {
    for_each([&](int32_t bin, IndexedKeyBits key) {
      if (bounds.HasP(bin)) visit(key, MassOf(largest, LogitOf(key)));
    });
  });
  return Largest()(last, last_of_p);
}

}  // namespace foredraft::cuda
