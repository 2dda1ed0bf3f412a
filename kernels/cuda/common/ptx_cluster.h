#pragma once

// Hopper's instructions (sm_90a) for blocks of a cluster, one function each, as in
// kernels/cuda/common/ptx_hopper.h. `own` is an object in this block's shared memory; functions that act on
// another block mean the object at the same place of that block's shared memory. A block's shared memory may
// be accessed from ClusterStart to the ClusterSync before its end.
//
// MbarrierWait acquires at the scope of a block, MbarrierArriveAt releases at it: shared memory is not
// cached, and the wider scope would only discard the L1 cache.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/ptx_hopper.h"

namespace foredraft::cuda {

// This block's place in its cluster.
__device__ __forceinline__ uint32_t ClusterRank() {
  uint32_t rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// Waits until all threads of the cluster have come here. Orders only what FenceMbarrierInit orders.
__device__ __forceinline__ void ClusterStart() {
  asm volatile("barrier.cluster.arrive.relaxed;\n\tbarrier.cluster.wait;" ::: "memory");
}
// __syncthreads of all blocks of the cluster; waits for this thread's writes of device memory, too.
__device__ __forceinline__ void ClusterSync() {
  asm volatile("barrier.cluster.arrive;\n\tbarrier.cluster.wait;" ::: "memory");
}

// The address of block `rank`'s object.
__device__ __forceinline__ uint32_t SharedAddressAt(const void* own, uint32_t rank) {
  uint32_t address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(SharedAddress(own)), "r"(rank));
  return address;
}

__device__ __forceinline__ void MbarrierArriveAt(Mbarrier& own, uint32_t rank) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(SharedAddressAt(&own, rank)) : "memory");
}
__device__ __forceinline__ void MbarrierArriveExpectTxAt(Mbarrier& own, uint32_t rank, uint32_t bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], %1;" ::"r"(SharedAddressAt(&own, rank)),
      "r"(bytes)
      : "memory");
}

// TmaLoad into the shared memory of each block whose bit is set in `ranks`; each block's own mbarrier counts
// its bytes.
__device__ __forceinline__ void TmaLoadMulticast(void* own, const TensorMap& tensor, int32_t c0, int32_t c1,
                                                 int32_t c2, Mbarrier& own_barrier, uint16_t ranks,
                                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6, %7;" ::"r"(SharedAddress(own)),
      "l"(&tensor.map), "r"(c0), "r"(c1), "r"(c2), "r"(SharedAddress(&own_barrier)), "h"(ranks), "l"(policy)
      : "memory");
}

// Stores 16 bytes in block `rank`'s shared memory, whose mbarrier counts them. A thread of that block that
// has waited for the mbarrier calls FenceProxyAsync before wgmma reads them.
__device__ __forceinline__ void StoreAsyncAt(uint4* own, const uint4& value, Mbarrier& own_barrier,
                                             uint32_t rank) {
  asm volatile(
      "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
          SharedAddressAt(own, rank)),
      "r"(value.x), "r"(value.y), "r"(value.z), "r"(value.w), "r"(SharedAddressAt(&own_barrier, rank))
      : "memory");
}

}  // namespace foredraft::cuda
