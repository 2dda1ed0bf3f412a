#pragma once

// Instructions without a CUDA C++ intrinsic, one function each. All inline PTX is in this header and ptx_*.h,
// so that tests/cuda_on_host can substitute its own versions and run the kernels on the host.

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>

namespace foredraft::cuda {

// The block's dynamic shared memory as one struct, 1024-byte aligned.
template <class T>
__device__ __forceinline__ T& SharedStorage() {
  extern __shared__ __align__(1024) unsigned char foredraft_shared_memory[];
  return *reinterpret_cast<T*>(foredraft_shared_memory);
}

// Programmatic dependent launch (kernels/cuda/device/cuda_stream.h): waits until the previous kernels have
// completed and their writes are visible; returns at once after an ordinary launch, and before sm_90, where
// there are no such launches.
__device__ __forceinline__ void GridDependencyWait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the next kernel start once all blocks of this one have called it or exited.
__device__ __forceinline__ void GridDependencyLaunch() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}
// The first statement of most kernels.
__device__ __forceinline__ void GridDependencySync() {
  GridDependencyWait();
  GridDependencyLaunch();
}

__device__ __forceinline__ uint32_t SharedAddress(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// ---- memory of other ranks' GPUs ----

// Write another GPU's memory. Writes arrive in any order, but before flags that are stored after the next
// FenceSystem.
__device__ __forceinline__ void StorePeer(uint4* to, const uint4& value) { *to = value; }
__device__ __forceinline__ void StorePeer(uint32_t* to, uint32_t value) { *to = value; }
// Writes of this thread, and those that __syncthreads ordered before it, arrive before what it stores next.
__device__ __forceinline__ void FenceSystem() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
__device__ __forceinline__ void StorePeerFlag(uint64_t* flag, uint64_t value) {
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(flag), "l"(value) : "memory");
}
// Waits until a peer has stored `value` or the one after it, and sees what that peer wrote before; or until
// *over, in the host's memory, is not 0.
__device__ __forceinline__ void WaitForPeerFlag(const uint64_t* flag, uint64_t value, const uint32_t* over) {
  for (uint32_t looks = 1;; ++looks) {
    uint64_t seen;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(seen) : "l"(flag) : "memory");
    if (seen - value <= 1) return;
    if (looks % 1024 != 0) continue;
    uint32_t ended;
    asm volatile("ld.relaxed.sys.u32 %0, [%1];" : "=r"(ended) : "l"(over) : "memory");
    if (ended != 0) return;
  }
}

// The larger of two numbers; NaN if one of them is.
__device__ __forceinline__ float MaxOrNan(float a, float b) {
  float larger;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
  return larger;
}

// Copies 16 bytes from global to shared memory asynchronously; if not `valid`, writes zeros and reads
// nothing.
__device__ __forceinline__ void CpAsync16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(SharedAddress(shared)), "l"(global),
               "r"(valid ? 16 : 0)
               : "memory");
}
// Makes the compiler issue all loads before it in the source ahead of everything after it; otherwise it moves
// each load to its use. Costs one instruction and waits for no load.
__device__ __forceinline__ void IssueLoads() { __syncwarp(__activemask()); }

// Starts to bring the 128 bytes around an address into L2.
__device__ __forceinline__ void PrefetchLine(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

__device__ __forceinline__ void CpAsyncCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most `pending` of this thread's groups are in flight.
template <int pending>
__device__ __forceinline__ void CpAsyncWait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Four 8x8 matrices of 16-bit elements; lane l passes the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void LdMatrix4(uint32_t (&out)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}
__device__ __forceinline__ void LdMatrix4Transposed(uint32_t (&out)[4], const void* shared_row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(SharedAddress(shared_row))
               : "memory");
}

// d += a b over one m16n8k16 tile, BF16 in, FP32 out. With g = lane / 4 and t = lane % 4: a[0] holds
// A[g][2t..2t+1], a[1] A[g+8][2t..], a[2] A[g][2t+8..], a[3] A[g+8][2t+8..]; b[0] holds B[2t..2t+1][g], b[1]
// B[2t+8..][g]; d[0..1] hold D[g][2t..2t+1], d[2..3] D[g+8][2t..].
__device__ __forceinline__ void MmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// MmaBf16 with d = a b: sums that begin with it need not be cleared.
__device__ __forceinline__ void FirstMmaBf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%10,%10,%10,%10};"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(0.0f));
}

}  // namespace foredraft::cuda
