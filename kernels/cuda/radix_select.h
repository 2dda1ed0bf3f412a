#ifndef FOREDRAFT_KERNELS_CUDA_RADIX_SELECT_H_
#define FOREDRAFT_KERNELS_CUDA_RADIX_SELECT_H_

// Where in a block's elements, ordered by key from the largest down, the running sum of weights reaches a
// target. Weights are integers (counts, or probabilities in fixed point), added by integer atomics: the same
// sums in any order. No sort, no random numbers.
//
// Four passes over the elements: first by a coarse bin that only has to fall with the key and should spread
// the elements (the digits of a float's key do not: most logits share an exponent, and atomics on one address
// go one by one), then by the key's 11 + 11 + 10 bits within that bin.

#include <cstdint>

#include "kernels/cuda/block_reduce.h"

namespace foredraft::cuda {

using Weight = unsigned long long;  // as atomicAdd has it

inline constexpr int32_t kSelectBins = 2048;
// The coarse bin that is not counted in the first pass: its elements may be many, and whatever the other bins
// do not reach is in it.
inline constexpr int32_t kLastBin = kSelectBins - 1;

struct SelectShared {
  Weight bins[kSelectBins];
  Weight warp_sums[kMaxWarps];
  Weight above;  // the bin found: weight of those before it, its own, its index
  Weight at;
  int32_t bin;
};

struct Selected {
  uint32_t key;
  Weight above;  // of all larger keys: < target
  Weight at;     // of the elements with this key; above + at >= target where there is that much
};

// The first bin where the sum from bin 0 on reaches `target` >= 1, else the last. Fills s.bin, s.above, s.at.
__device__ inline void FindBin(SelectShared& s, Weight target) {
  const int32_t per_thread =
      (kSelectBins + static_cast<int32_t>(blockDim.x) - 1) / static_cast<int32_t>(blockDim.x);
  const int32_t begin = min(static_cast<int32_t>(threadIdx.x) * per_thread, kSelectBins);
  const int32_t end = min(begin + per_thread, kSelectBins);
  Weight own = 0;
  for (int32_t bin = begin; bin < end; ++bin) own += s.bins[bin];

  const int lane = static_cast<int>(threadIdx.x % 32);
  Weight upto = own;  // of this warp's threads up to this one
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

// for_each(visit) calls visit(coarse bin, key, weight) for each element of the calling thread, the same ones
// each time. All threads of the block call this and get the result.
template <class ForEach>
__device__ Selected Select(SelectShared& s, Weight target, const ForEach& for_each) {
  Selected found = {0, 0, 0};
  int32_t coarse = 0;
  for (int pass = 0; pass < 4; ++pass) {
    const int32_t low_bits = pass == 1 ? 21 : pass == 2 ? 10 : 0;  // below the pass's digit
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
