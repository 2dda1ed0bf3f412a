// Sorts (row, choice) pairs by expert in one launch: a warp per expert walks all pairs twice, 32 at a time.
// It first counts the pairs of lower experts, which gives the offset of its own pairs, and then numbers its
// own pairs in ascending order. So the sort is stable without atomics or a second kernel.

#include "kernels/cuda/cuda_stream.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/ptx.h"

namespace foredraft::cuda {
namespace {

constexpr int kWarpsPerBlock = 4;
constexpr uint32_t kAllLanes = 0xffffffffu;

// The index of pair i's expert among this rank's experts; -1: another rank's expert, or an idle row.
__device__ int32_t LocalExpert(const GroupRowsParams& p, int64_t i) {
  const int32_t expert = p.expert_ids[i];
  const int32_t local = expert - p.first_expert;
  return expert >= 0 && local >= 0 && local < p.expert_count ? local : -1;
}

// The number of pairs of experts [0, end).
__device__ int32_t CountBelow(const GroupRowsParams& p, int64_t pairs, int32_t end, int32_t lane) {
  int32_t count = 0;
  for (int64_t i = lane; i < pairs; i += 32) {
    const int32_t expert = LocalExpert(p, i);
    count += expert >= 0 && expert < end ? 1 : 0;
  }
  return __reduce_add_sync(kAllLanes, count);
}

__device__ void NumberPairs(const GroupRowsParams& p, int64_t pairs, int32_t expert, int32_t offset,
                            int32_t lane) {
  int32_t next = offset;
  for (int64_t first = 0; first < pairs; first += 32) {
    const int64_t i = first + lane;
    const bool own = i < pairs && LocalExpert(p, i) == expert;
    const uint32_t lanes = __ballot_sync(kAllLanes, own);
    if (own) {
      const int32_t grouped = next + __popc(lanes & ((1u << lane) - 1));
      p.grouped_index[i] = grouped;
      p.grouped_rows[grouped] = static_cast<int32_t>(i / p.top_k);
    }
    next += __popc(lanes);
  }
}

// Warp e handles expert e. The warp after the last expert writes the total and marks the pairs without an
// expert of this rank.
__global__ void __launch_bounds__(kWarpsPerBlock * 32)
    GroupRowsKernel(const __grid_constant__ GroupRowsParams p) {
  GridDependencySync();
  const int32_t lane = threadIdx.x % 32;
  const int32_t expert =
      static_cast<int32_t>(blockIdx.x) * kWarpsPerBlock + static_cast<int32_t>(threadIdx.x / 32);
  if (expert > p.expert_count) return;
  const int64_t pairs = static_cast<int64_t>(p.rows) * p.top_k;
  const int32_t offset = CountBelow(p, pairs, expert, lane);
  if (lane == 0) p.expert_offsets[expert] = offset;
  if (expert < p.expert_count) {
    NumberPairs(p, pairs, expert, offset, lane);
    return;
  }
  for (int64_t i = lane; i < pairs; i += 32) {
    if (LocalExpert(p, i) < 0) p.grouped_index[i] = -1;
  }
}

}  // namespace

void GroupRows(Stream& stream, const GroupRowsParams& p) {
  Launch(
      stream, GroupRowsKernel,
      {.grid = dim3((p.expert_count + kWarpsPerBlock) / kWarpsPerBlock), .block = dim3(kWarpsPerBlock * 32)},
      p);
}

}  // namespace foredraft::cuda
