#pragma once

// The emulation of kernels/cuda/common/ptx_cluster.h. A copy to another block arrives late, as a block's own
// does; the block that it is for must not have ended.

#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "kernels/cuda/common/ptx_hopper.h"

namespace foredraft::cuda {

inline uint32_t ClusterRank() { return cuda_on_host::RankInCluster(); }
inline void ClusterSync(CUDA_ON_HOST_CALLER) {
  cuda_on_host::ArriveAtCluster({file, line});
  cuda_on_host::WaitForCluster({file, line});
}

inline void ClusterStart(CUDA_ON_HOST_CALLER) { ClusterSync(file, line); }

namespace on_host {

inline Mbarrier& BarrierAt(Mbarrier& own, uint32_t rank, const cuda_on_host::SourceLocation& location) {
  auto& barrier = *static_cast<Mbarrier*>(cuda_on_host::InBlockOfCluster(&own, rank, location));
  if (unfenced_barriers.contains(&barrier)) {
    cuda_on_host::KernelFault(location,
                              "an mbarrier of another block, initialised without a fence.mbarrier_init");
  }
  return barrier;
}

}  // namespace on_host

inline void MbarrierArriveAt(Mbarrier& own, uint32_t rank, CUDA_ON_HOST_CALLER) {
  MbarrierArrive(on_host::BarrierAt(own, rank, {file, line}), file, line);
}
inline void MbarrierArriveExpectTxAt(Mbarrier& own, uint32_t rank, uint32_t bytes, CUDA_ON_HOST_CALLER) {
  MbarrierArriveExpectTx(on_host::BarrierAt(own, rank, {file, line}), bytes, file, line);
}

inline void TmaLoadMulticast(void* own, const TensorMap& tensor, int32_t c0, int32_t c1, int32_t c2,
                             Mbarrier& own_barrier, uint16_t ranks, uint64_t policy, CUDA_ON_HOST_CALLER) {
  for (uint32_t left = ranks; left != 0; left &= left - 1) {
    const uint32_t rank = static_cast<uint32_t>(std::countr_zero(left));
    Mbarrier& barrier = on_host::BarrierAt(own_barrier, rank, {file, line});
    on_host::StartTensorLoad(cuda_on_host::InBlockOfCluster(own, rank, {file, line}), tensor, {c0, c1, c2},
                             barrier, policy, {file, line});
  }
}

inline void StoreAsyncAt(uint4* own, const uint4& value, Mbarrier& own_barrier, uint32_t rank,
                         CUDA_ON_HOST_CALLER) {
  on_host::BulkCopy copy = {.location = {file, line}, .stores = true, .value = value};
  copy.shared = static_cast<std::byte*>(cuda_on_host::InBlockOfCluster(own, rank, copy.location));
  on_host::StartCopy(copy, on_host::BarrierAt(own_barrier, rank, copy.location),
                     CachePolicy<CacheHint::kEvictFirst>());
}

}  // namespace foredraft::cuda
