#pragma once

// The choice of a token's experts: a block per token computes the experts' keys, and its first warp chooses
// with the keys in registers, expert lane + 32 i in keys[i]. Every function is called by all lanes of that
// warp. A choice is a chain of dependent steps of one warp, so its time is that of the steps, not of all
// instructions.

#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/common/ordered_key.h"
#include "kernels/cuda/common/ptx.h"

namespace foredraft::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr int kRouteThreads = 128;
inline constexpr int32_t kMaxExperts = 1024;
// Below the keys of all floats.
inline constexpr uint32_t kExcludedKey = 0;

// NaN counts as -infinity, so that even a row of NaN gets distinct experts.
__device__ __forceinline__ uint32_t SelectionKey(float x) { return max(OrderedKey(x), kMinusInfinityKey); }

// Calls visit(e, logits[e], bias[e]) for the thread's experts, at most n / (kRouteThreads / 32), all of whose
// loads are in flight together.
template <int n, class Visit>
__device__ __forceinline__ void ForEachOwnExpert(const float* logits, const float* bias, int32_t experts,
                                                 const Visit& visit) {
  constexpr int kOwn = n * 32 / kRouteThreads;
  float own_logits[kOwn], own_bias[kOwn];
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int32_t e = min(thread + i * kRouteThreads, experts - 1);
    own_logits[i] = logits[e];
    own_bias[i] = bias[e];
  }
  IssueLoads();
#pragma unroll
  for (int i = 0; i < kOwn; ++i) {
    const int32_t e = thread + i * kRouteThreads;
    if (e < experts) visit(e, own_logits[i], own_bias[i]);
  }
}

// Batcher's odd-even merge sort of n keys, a power of two: comparisons of one pass do not wait for each
// other. Runs the pass for `distance` in the merge of sorted runs of `merged` keys, then all later passes.
template <int n, int merged = 1, int distance = 1>
__device__ __forceinline__ void SortDescending(uint32_t (&keys)[n]) {
  constexpr int from = distance % merged;
#pragma unroll
  for (int i = from; i + distance < n; ++i) {
    if ((i - from) % (2 * distance) >= distance || i / (2 * merged) != (i + distance) / (2 * merged))
      continue;
    const uint32_t larger = max(keys[i], keys[i + distance]);
    keys[i + distance] = min(keys[i], keys[i + distance]);
    keys[i] = larger;
  }
  if constexpr (distance > 1) {
    SortDescending<n, merged, distance / 2>(keys);
  } else if constexpr (2 * merged < n) {
    SortDescending<n, 2 * merged, 2 * merged>(keys);
  }
}

// The chosen experts are those with a larger key, and the first `count` with this key.
struct LastChosen {
  uint32_t key;
  int32_t count;
};

// The last of the `count` largest keys; ties: the lowest index comes first.
template <int n>
__device__ __forceinline__ LastChosen FindLastChosen(const uint32_t (&keys)[n], int32_t count) {
  uint32_t sorted[n];
#pragma unroll
  for (int i = 0; i < n; ++i) sorted[i] = keys[i];
  SortDescending(sorted);
  LastChosen last = {kExcludedKey, 0};
  while (true) {
    const uint32_t largest = __reduce_max_sync(kAllLanes, sorted[0]);
    const bool holds = sorted[0] == largest;
    const int32_t taken = min(__popc(__ballot_sync(kAllLanes, holds)), count);
    last = {largest, (largest == last.key ? last.count : 0) + taken};
    count -= taken;
    if (count == 0) return last;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const uint32_t next = i + 1 < n ? sorted[i + 1] : kExcludedKey;
      sorted[i] = holds ? next : sorted[i];
    }
  }
}

// Writes the ids of the chosen experts, ascending.
template <int n>
__device__ __forceinline__ void ListChosen(const uint32_t (&keys)[n], LastChosen last, int32_t lane,
                                           int32_t* chosen) {
  const uint32_t lower_lanes = (1u << lane) - 1;
  int32_t listed = 0;
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const bool equal = keys[i] == last.key;
    const uint32_t equals = __ballot_sync(kAllLanes, equal);
    const bool is_chosen = keys[i] > last.key || (equal && __popc(equals & lower_lanes) < last.count);
    last.count -= min(__popc(equals), last.count);
    const uint32_t lanes = __ballot_sync(kAllLanes, is_chosen);
    if (is_chosen) chosen[listed + __popc(lanes & lower_lanes)] = lane + 32 * i;
    listed += __popc(lanes);
  }
  __syncwarp();
}

// Writes the ids of the `count` experts with the largest of the keys in shared memory, ascending; ties: the
// lowest index.
template <int n>
__device__ __forceinline__ void ChooseLargest(const uint32_t* shared_keys, int32_t experts, int32_t count,
                                              int32_t lane, int32_t* chosen) {
  uint32_t keys[n];
#pragma unroll
  for (int i = 0; i < n; ++i) {
    const int32_t e = lane + 32 * i;
    keys[i] = e < experts ? shared_keys[e] : kExcludedKey;
  }
  ListChosen(keys, FindLastChosen(keys, count), lane, chosen);
}

// Writes that an idle row has no experts.
__device__ __forceinline__ void ChooseNone(int32_t* ids, float* weights, int32_t count) {
#pragma unroll 1
  for (int32_t i = static_cast<int32_t>(threadIdx.x); i < count; i += kRouteThreads) {
    ids[i] = -1;
    weights[i] = 0.0f;
  }
}

// ---- for the host ----

// Calls launch.template operator()<n>(), where a lane has n of the keys of `experts` experts.
template <class Launch>
void WithKeysPerLane(int32_t experts, const Launch& launch) {
  CHECK_LE(experts, kMaxExperts);
  if (experts <= 8 * 32) {
    launch.template operator()<8>();
  } else if (experts <= 16 * 32) {
    launch.template operator()<16>();
  } else {
    launch.template operator()<32>();
  }
}

}  // namespace foredraft::cuda
