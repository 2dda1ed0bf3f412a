#pragma once

// More Hopper instructions (kernels/cuda/common/ptx_hopper.h), in the shapes that attention uses.

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/ptx_hopper.h"

namespace foredraft::cuda {

// Makes this thread's stores to shared memory visible to the async proxy: to wgmma and TMA that start after a
// following barrier.
__device__ __forceinline__ void FenceProxyAsync() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Returns the value, hidden from the compiler, which therefore computes what depends on it no earlier. In an
// unrolled loop the compiler would otherwise compute all descriptors ahead, and spill registers.
__device__ __forceinline__ uint64_t Opaque(uint64_t value) {
  asm volatile("" : "+l"(value));
  return value;
}

__device__ __forceinline__ uint32_t Opaque(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// exp2f, except that subnormal results become 0: one instruction instead of four.
__device__ __forceinline__ float Exp2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// MbarrierWait without the limit of FOREDRAFT_SPIN_LIMIT, for waits that hang only if a limited wait hangs,
// too. The report of a limited wait costs registers that attention does not have everywhere.
__device__ __forceinline__ void MbarrierWaitUnlimited(Mbarrier& barrier, uint32_t parity) {
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra ended;\n\t"
      "bra again;\n"
      "ended:\n\t}" ::"r"(SharedAddress(&barrier)),
      "r"(parity)
      : "memory");
}

// A named barrier, 1 to 15, for `threads` threads of the block, whole warps. Barrier 0 is __syncthreads.
template <int threads>
__device__ __forceinline__ void NamedBarrierSync(int barrier) {
  static_assert(threads % 32 == 0);
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

// Shared memory descriptor of operand B of WgmmaBf16MnMajorB: a swizzled tile whose rows are k and whose
// columns are 64 outputs; the tile of the next 64 outputs is `bytes_to_next` after it. Add kDescriptor16Rows
// for the next k16 group.
__device__ __forceinline__ uint64_t MnMajorDescriptor(const void* tile, int bytes_to_next) {
  constexpr uint64_t kEightRows = 1024;
  return static_cast<uint64_t>(SharedAddress(tile) >> 4 & 0x3fffu) |
         static_cast<uint64_t>(bytes_to_next >> 4) << 16 | (kEightRows >> 4) << 32 | uint64_t{1} << 62;
}
inline constexpr uint64_t kDescriptor16Rows = 16 * kTileRowBytes >> 4;

// wgmma m64n256k16: d = a b (+ d if `add`); a is [64, 16] K-major, b is [16, 256] MN-major. d is laid out as
// in WgmmaBf16.
__device__ __forceinline__ void WgmmaBf16MnMajorB(float (&d)[128], uint64_t a, uint64_t b, bool add) {
  asm volatile(
      "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %130, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {" FOREDRAFT_NAMES64
      ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"
      ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
      ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
      ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
      "}, %128, %129, add, 1, 1, 0, 1;\n\t}"
      : FOREDRAFT_D64(0), FOREDRAFT_D64(64)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)));
}

// wgmma m64n32k32 with operand a in registers: d = a b^T (+ d if `add`), b as in WgmmaF8. With w = warp % 4,
// g = lane / 4, t = lane % 4, a[0] holds A[16 w + g][4 t .. 4 t + 3], a[1] the same of row 16 w + g + 8, a[2]
// and a[3] A[..][16 + 4 t ..] of both rows. They must not change before the wait.
__device__ __forceinline__ void WgmmaF8(float (&d)[16], const uint32_t (&a)[4], uint64_t b, bool add) {
  asm volatile(
      "{\n\t.reg .pred add;\n\tsetp.ne.b32 add, %21, 0;\n\t"
      "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" FOREDRAFT_NAMES16
      "}, {%16, %17, %18, %19}, %20, add, 1, 1;\n\t}"
      : FOREDRAFT_D16(0)
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(static_cast<int>(add)));
}

__device__ __forceinline__ void WarpgroupWaitAll(float (&d)[128]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" : FOREDRAFT_D64(0), FOREDRAFT_D64(64)::"memory");
}

}  // namespace foredraft::cuda
