#ifndef FOREDRAFT_KERNELS_CUDA_RADIX_SELECT_H_
#define FOREDRAFT_KERNELS_CUDA_RADIX_SELECT_H_

// Radix select: finds the key at which the running sum of weights, over a block's elements in descending
// order of key, reaches a target. Weights are integers (counts, or probabilities in fixed point) added by
// integer atomics, so the sums do not depend on the order.
//
// Four passes over the elements. The first uses a coarse bin, which must not increase with the key and should
// spread the elements: most logits share an exponent, and atomics on one address serialise. The other three
// use the key's 11 + 11 + 10 bits within that bin.

#include <cstdint>

#include "kernels/cuda/block_reduce.h"

namespace foredraft::cuda {

using Weight = unsigned long long;  // the type that atomicAdd supports

inline constexpr int32_t kSelectBins = 2048;
// The first pass does not count this coarse bin, which may have many elements: it is chosen if the other bins
// do not reach the target.
inline constexpr int32_t kLastBin = kSelectBins - 1;

struct SelectShared {
  Weight bins[kSelectBins];
  Weight warp_sums[kMaxWarps];
  Weight above;  // FindBin's result: the weight before the bin,
  Weight at;     // the bin's weight,
  int32_t bin;   // and its index
};

struct Selected {
  uint32_t key;
  Weight above;  // weight of all larger keys, < target
  Weight at;     // weight of this key; above + at >= target if the total reaches it
};

// Finds the first bin at which the sum from bin 0 reaches `target` >= 1, else the last bin. Sets s.bin,
// s.above and s.at.
__device__ inline void FindBin(SelectShared& s, Weight target) {
  const int32_t per_thread =
      (kSelectBins + static_cast<int32_t>(blockDim.x) - 1) / static_cast<int32_t>(blockDim.x);
  const int32_t begin = min(static_cast<int32_t>(threadIdx.x) * per_thread, kSelectBins);
  const int32_t end = min(begin + per_thread, kSelectBins);
  Weight own = 0;
  for (int32_t bin = begin; bin < end; ++bin) own += s.bins[bin];

  const int lane = static_cast<int>(threadIdx.x % 32);
  Weight upto = own;  // inclusive prefix sum over the warp
  for (int distance = 1; distance < 32; distance *= 2) {
    const Weight lower = __shfl_up_sync(0xffffffffu, upto, distance);
    if (lane >= distance) upto += lower;
  }
  if (lane == 31) s.warp_sums[threadIdx.x / 32] = upto;
  __syncthreads();
  Weight before = upto - own;
  for (uint32_t warp = 0; warp < threadIdx.x / 32; ++warp) before += s.warp_sums[warp];

  const bool reaches = before < target && before + own >= target;
  const bool falls_short = begin < end && end == kSelectBins && before + own < target;
  if (reaches || falls_short) {
    int32_t bin = begin;
    while (bin + 1 < end && before + s.bins[bin] < target) before += s.bins[bin++];
    s.bin = bin;
    s.above = before;
    s.at = s.bins[bin];
  }
  __syncthreads();
}

// for_each(visit) calls visit(coarse bin, key, weight) for each element of the calling thread, the same
// elements every time. Called by all threads of the block; returns the result to all.
template <class ForEach>
__device__ Selected Select(SelectShared& s, Weight target, const ForEach& for_each) {
  Selected found = {0, 0, 0};
  int32_t coarse = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const int32_t low_bits = pass == 1 ? 21 : pass == 2 ? 10 : 0;  // bits below this pass's digit
    const int32_t digit_bits = pass == 3 ? 10 : 11;
    for (int32_t bin = static_cast<int32_t>(threadIdx.x); bin < kSelectBins;
         bin += static_cast<int32_t>(blockDim.x)) {
      s.bins[bin] = 0;
    }
    __syncthreads();
    for_each([&](int32_t element_coarse, uint32_t key, Weight weight) {
      int32_t bin = element_coarse;
      if (pass == 0) {
        if (bin == kLastBin) return;
      } else {
        if (element_coarse != coarse) return;
        if (pass > 1 && key >> (low_bits + digit_bits) != found.key) return;
        bin = kLastBin - static_cast<int32_t>((key >> low_bits) & ((1u << digit_bits) - 1));
      }
      atomicAdd(&s.bins[bin], weight);
    });
    __syncthreads();
    FindBin(s, target);
    target -= s.above;
    found.above += s.above;
    found.at = s.at;
    if (pass == 0) {
      coarse = s.bin;
    } else {
      found.key = found.key << digit_bits | static_cast<uint32_t>(kLastBin - s.bin);
    }
    __syncthreads();
  }
  return found;
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_RADIX_SELECT_H_
