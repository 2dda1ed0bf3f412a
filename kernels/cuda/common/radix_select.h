#pragma once

// Finds the key at which the running sum of weights, over elements in descending order of key, reaches a
// target. Weights are integers (counts, or probabilities in fixed point), so the sums do not depend on the
// order in which they are added.

#include <cstdint>

#include "kernels/cuda/common/block_reduce.h"

namespace foredraft::cuda {

using Weight = unsigned long long;  // the type that atomicAdd supports

// Sums of weights, in shared memory. 64-bit atomics are loops there and 32-bit atomics are instructions, so a
// sum is kept in two words. The thread whose addition wraps the low word adds the carry to the high word.
template <int bin_count>
struct WeightBins {
  uint32_t low[bin_count];
  uint32_t high[bin_count];

  __device__ void Add(int32_t bin, Weight weight) {
    const uint32_t added = static_cast<uint32_t>(weight);
    uint32_t carried = static_cast<uint32_t>(weight >> 32);
    if (added != 0 && atomicAdd(&low[bin], added) > ~added) ++carried;
    if (carried != 0) atomicAdd(&high[bin], carried);
  }
  // Adds n weights; the additions to their low words are in flight together. Skips weights of 0, which would
  // all contend for one bin.
  template <int n>
  __device__ void Add(const int32_t (&bins)[n], const Weight (&weights)[n]) {
    uint32_t before[n] = {};
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const uint32_t added = static_cast<uint32_t>(weights[i]);
      if (added != 0) before[i] = atomicAdd(&low[bins[i]], added);
    }
#pragma unroll
    for (int i = 0; i < n; ++i) {
      uint32_t carried = static_cast<uint32_t>(weights[i] >> 32);
      if (before[i] > ~static_cast<uint32_t>(weights[i])) ++carried;
      if (carried != 0) atomicAdd(&high[bins[i]], carried);
    }
  }
  __device__ Weight At(int32_t bin) const { return static_cast<Weight>(high[bin]) << 32 | low[bin]; }
  __device__ void Clear(int32_t bin) {
    low[bin] = 0;
    high[bin] = 0;
  }
};

// ---- the bin that reaches a target ----

struct FoundBin {
  int32_t bin;   // -1: the sum of all bins falls short
  Weight above;  // the weight before the bin, < target
  Weight at;     // the bin's weight; above + at >= target
};

struct FindBinShared {
  Weight warp_sums[kMaxWarps];
  FoundBin found;
};

// Thread t has the weights of bins per_thread * t .. + per_thread - 1. Finds the first bin at which the sum
// from bin 0 reaches `target` >= 1. Called by all threads of the block; returns the result to all.
template <int per_thread>
__device__ FoundBin FindBin(const Weight (&weights)[per_thread], Weight target, FindBinShared& s) {
  Weight own = 0;
#pragma unroll
  for (int i = 0; i < per_thread; ++i) own += weights[i];
  const int lane = static_cast<int>(threadIdx.x % 32);
  Weight upto = own;  // inclusive prefix sum over the warp
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const Weight lower = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += lower;
  }
  if (lane == 31) s.warp_sums[threadIdx.x / 32] = upto;
  if (threadIdx.x == 0) s.found = {-1, 0, 0};
  __syncthreads();
  Weight before = upto - own;
  if (own != 0) {  // else the target is not reached here
    for (uint32_t warp = 0; warp < threadIdx.x / 32; ++warp) before += s.warp_sums[warp];
  }
  if (before < target && before + own >= target) {
#pragma unroll
    for (int i = 0; i < per_thread; ++i) {
      if (before < target && before + weights[i] >= target) {
        s.found = {static_cast<int32_t>(threadIdx.x) * per_thread + i, before, weights[i]};
      }
      before += weights[i];
    }
  }
  __syncthreads();
  const FoundBin found = s.found;
  __syncthreads();
  return found;
}

// ---- the key that reaches a target ----

inline constexpr int kDigitBits = 8;
inline constexpr int kDigits = 1 << kDigitBits;
inline constexpr int kSelectThreads = kDigits;  // at least: a thread per bin

struct SelectShared {
  WeightBins<kDigits> weights;
  uint32_t counts[kDigits];
  FindBinShared find;
  unsigned long long keys[kMaxWarps];
  unsigned long long last;
};

struct BitsOfAny {
  __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const { return a | b; }
};
struct BitsOfAll {
  __device__ unsigned long long operator()(unsigned long long a, unsigned long long b) const { return a & b; }
};

// for_each(visit) calls visit(key, weight) for each element of the calling thread, the same elements every
// time. Keys are above 0, and no two are equal. Called by all kThreads threads of the block; returns the key
// to all, or 0 if the weights of all elements fall short of `target` >= 1.
//
// Reads the elements once for the bits in which they differ, then once per digit of these bits, from the
// highest on, until one element has the digits found so far, and once for that element's other bits.
template <int kThreads = kSelectThreads, class ForEach>
__device__ unsigned long long SelectKey(SelectShared& s, Weight target, const ForEach& for_each) {
  unsigned long long any = 0;
  unsigned long long all = ~0ull;
  for_each([&](unsigned long long key, Weight) {
    any |= key;
    all &= key;
  });
  any = BlockReduce(any, BitsOfAny(), s.keys);
  if (any == 0) return 0;
  all = BlockReduce(all, BitsOfAll(), s.keys);
  int32_t unknown_bits = 64 - __clzll(static_cast<long long>(any ^ all));
  const auto unknown_mask = [&] { return unknown_bits < 64 ? (1ull << unknown_bits) - 1 : ~0ull; };
  unsigned long long found = all & ~unknown_mask();
  static_assert(kThreads >= kDigits);
  const int32_t own = static_cast<int32_t>(threadIdx.x);
  const bool has_bin = kThreads == kDigits || own < kDigits;
  do {
    const int32_t digit_bits = min(unknown_bits, kDigitBits);
    const int32_t digit_mask = (1 << digit_bits) - 1;
    const int32_t shift = unknown_bits - digit_bits;
    const unsigned long long known_mask = ~unknown_mask();
    if (has_bin) {
      s.weights.Clear(own);
      s.counts[own] = 0;
    }
    __syncthreads();
    for_each([&](unsigned long long key, Weight weight) {
      if (((key ^ found) & known_mask) != 0) return;
      const int32_t bin = digit_mask - (static_cast<int32_t>(key >> shift) & digit_mask);
      atomicAdd(&s.counts[bin], 1u);
      s.weights.Add(bin, weight);
    });
    __syncthreads();
    const Weight weights[1] = {has_bin ? s.weights.At(own) : 0};
    const FoundBin at = FindBin(weights, target, s.find);
    if (at.bin < 0) return 0;
    target -= at.above;
    found |= static_cast<unsigned long long>(digit_mask - at.bin) << shift;
    unknown_bits = shift;
    if (unknown_bits > 0 && s.counts[at.bin] == 1) {
      for_each([&](unsigned long long key, Weight) {
        if (((key ^ found) & ~unknown_mask()) == 0) s.last = key;
      });
      __syncthreads();
      found = s.last;
      unknown_bits = 0;
    }
    __syncthreads();  // the next digit, or the next call, clears the bins
  } while (unknown_bits > 0);
  return found;
}

}  // namespace foredraft::cuda
