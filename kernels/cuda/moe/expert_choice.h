#pragma once

// The choice of a token's experts by one warp: a key per expert in shared memory, of which the largest are
// marked as chosen one by one. Every function is called by all lanes.

#include "kernels/cuda/common/ordered_key.h"
#include "kernels/cuda/common/ptx.h"

namespace foredraft::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;
// Below the keys of all floats.
inline constexpr uint32_t kExcludedKey = 0;
inline constexpr uint32_t kChosenKey = 1;

// NaN counts as -infinity, so that even a row of NaN gets distinct experts.
__device__ __forceinline__ uint32_t SelectionKey(float x) { return max(OrderedKey(x), kMinusInfinityKey); }

// Marks the largest key as chosen; ties: the lowest index.
__device__ __forceinline__ void TakeLargest(uint32_t* keys, int32_t count, int32_t lane) {
  uint32_t best = 0;
  int32_t index = count;
  for (int32_t i = lane; i < count; i += 32) {
    if (keys[i] > best) {
      best = keys[i];
      index = i;
    }
  }
  const uint32_t largest = __reduce_max_sync(kAllLanes, best);
  const uint32_t first = __reduce_min_sync(kAllLanes, static_cast<uint32_t>(best == largest ? index : count));
  if (lane == 0) keys[first] = kChosenKey;
  __syncwarp();
}

// The ids of the chosen experts, ascending.
__device__ __forceinline__ void ListChosen(const uint32_t* keys, int32_t count, int32_t* chosen,
                                           int32_t lane) {
  int32_t listed = 0;
  for (int32_t first = 0; first < count; first += 32) {
    const bool is_chosen = first + lane < count && keys[first + lane] == kChosenKey;
    const uint32_t lanes = __ballot_sync(kAllLanes, is_chosen);
    if (is_chosen) chosen[listed + __popc(lanes & ((1u << lane) - 1))] = first + lane;
    listed += __popc(lanes);
  }
  __syncwarp();
}

// An idle row has no experts.
__device__ __forceinline__ void ChooseNone(int32_t* ids, float* weights, int32_t count, int32_t lane) {
  for (int32_t i = lane; i < count; i += 32) {
    ids[i] = -1;
    weights[i] = 0.0f;
  }
}

}  // namespace foredraft::cuda
