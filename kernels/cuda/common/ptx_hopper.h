#pragma once

// Hopper's instructions (sm_90a), one function each, as in kernels/cuda/common/ptx.h: mbarrier, TMA and
// wgmma, named as in CUTLASS.
//
// A tile is rows of 128 bytes in the layout SWIZZLE_128B: 16-byte chunk c of row r is at chunk c ^ (r % 8).
// It is 1024-byte aligned.

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "base/check.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/tile_descriptor.h"
#include "kernels/cuda/device/spin_limit.h"

namespace foredraft::cuda {

// ---- mbarrier ----

// A phase completes when all arrivals and all bytes announced by MbarrierArriveExpectTx have come.
struct alignas(8) Mbarrier {
  uint64_t state;
};

__device__ __forceinline__ void MbarrierInit(Mbarrier& barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(SharedAddress(&barrier)), "r"(arrivals)
               : "memory");
}
// Makes the barriers visible to TMA. Called after MbarrierInit and before __syncthreads.
__device__ __forceinline__ void FenceMbarrierInit() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void MbarrierArrive(Mbarrier& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(SharedAddress(&barrier)) : "memory");
}
__device__ __forceinline__ void MbarrierArriveExpectTx(Mbarrier& barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(SharedAddress(&barrier)),
               "r"(bytes)
               : "memory");
}
#ifdef FOREDRAFT_SPIN_LIMIT
// Whether the phase of this parity has completed; may wait a little for it.
__device__ __forceinline__ bool MbarrierTryWait(Mbarrier& barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n\t.reg .pred done;\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n\t"
      "selp.u32 %0, 1, 0, done;\n\t}"
      : "=r"(done)
      : "r"(SharedAddress(&barrier)), "r"(parity)
      : "memory");
  return done != 0;
}
// The upper half of a clock in nanoseconds, which advances every 4.3 s: the kernels can spare one register,
// not two.
__device__ __forceinline__ uint32_t GlobalTimerHigh() {
  uint32_t time;
  asm volatile("mov.u32 %0, %globaltimer_hi;" : "=r"(time));
  return time;
}
#endif
// Waits for the completion of the phase of this parity. A new barrier is in phase 0, and its previous phase
// (parity 1) counts as complete. `name` is for the report of a wait that does not end (spin_limit.h); callers
// do not pass file and line.
__device__ __forceinline__ void MbarrierWait(Mbarrier& barrier, uint32_t parity, const char* name,
                                             const char* file = __builtin_FILE(),
                                             int line = __builtin_LINE()) {
#ifdef FOREDRAFT_SPIN_LIMIT
  if (MbarrierTryWait(barrier, parity)) return;
  const uint32_t start = GlobalTimerHigh();
  while (!MbarrierTryWait(barrier, parity)) {
    if (GlobalTimerHigh() - start > 1) TrapAtBarrier(name, parity, file, line);
  }
#else
  asm volatile(
      "{\n\t.reg .pred done;\n"
      "again:\n\t"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n\t"
      "@done bra ended;\n\t"
      "bra again;\n"
      "ended:\n\t}" ::"r"(SharedAddress(&barrier)),
      "r"(parity)
      : "memory");
#endif
}

// ---- TMA ----

// A TMA descriptor of a 3-D tensor in global memory. Passed inside the kernel's parameters.
struct TensorMap {
  CUtensorMap map;
};

// Innermost dimension first.
struct TensorShape {
  const void* data;       // 16-byte aligned
  int32_t element_bytes;  // 1, 2 or 4
  uint64_t extent[3];     // elements; loads past them give zero
  uint64_t pitch[2];      // bytes from one index to the next in dimensions 1 and 2; multiples of 16
  uint32_t box[3];        // elements per load
  bool swizzled;          // SWIZZLE_128B: box[0] is 128 bytes
};

inline TensorMap EncodeTensorMap(const TensorShape& t) {
  using Encode = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                              const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                              CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static const Encode encode = [] {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                                               cudaEnableDefault, &found);
    CHECK(error == cudaSuccess && found == cudaDriverEntryPointSuccess) << "no cuTensorMapEncodeTiled";
    return reinterpret_cast<Encode>(function);
  }();
  const CUtensorMapDataType type = t.element_bytes == 1   ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                   : t.element_bytes == 2 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                          : CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  const cuuint64_t extents[3] = {t.extent[0], t.extent[1], t.extent[2]};
  const cuuint64_t pitches[2] = {t.pitch[0], t.pitch[1]};
  const cuuint32_t box[3] = {t.box[0], t.box[1], t.box[2]};
  const cuuint32_t steps[3] = {1, 1, 1};
  TensorMap tensor = {};
  const CUresult result = encode(&tensor.map, type, 3, const_cast<void*>(t.data), extents, pitches, box,
                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
                                 t.swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  CHECK_EQ(static_cast<int>(result), static_cast<int>(CUDA_SUCCESS)) << "cuTensorMapEncodeTiled";
  return tensor;
}

__device__ __forceinline__ void PrefetchTensorMap(const TensorMap& tensor) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&tensor.map) : "memory");
}

// Brings `bytes` of device memory into the L2 cache; nothing waits for it. Both parameters are multiples of
// 16.
__device__ __forceinline__ void PrefetchL2(const void* source, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(source), "r"(bytes) : "memory");
}

// L2 eviction priority of the loaded lines.
enum class CacheHint { kEvictFirst, kEvictLast };
template <CacheHint hint>
__device__ __forceinline__ uint64_t CachePolicy() {
  uint64_t policy;
  if constexpr (hint == CacheHint::kEvictFirst) {
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  } else {
    asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
  }
  return policy;
}

// Starts the load of the box at (c0, c1, c2). The mbarrier counts its bytes, including those outside the
// tensor. `shared` is 128-byte aligned, 1024-byte if swizzled. c0 is a multiple of 16 bytes; with any other,
// an H100 reports an illegal instruction. Called by one thread.
__device__ __forceinline__ void TmaLoad(void* shared, const TensorMap& tensor, int32_t c0, int32_t c1,
                                        int32_t c2, Mbarrier& barrier, uint64_t policy) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(SharedAddress(shared)),
      "l"(&tensor.map), "r"(c0), "r"(c1), "r"(c2), "r"(SharedAddress(&barrier)), "l"(policy)
      : "memory");
}

// Starts the copy of `bytes` adjacent bytes, a multiple of 16; both addresses are 16-byte aligned. The
// mbarrier counts the bytes. Called by one thread.
__device__ __forceinline__ void BulkLoad(void* shared, const void* global, uint32_t bytes, Mbarrier& barrier,
                                         uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
      "[%3], "
      "%4;" ::"r"(SharedAddress(shared)),
      "l"(global), "r"(bytes), "r"(SharedAddress(&barrier)), "l"(policy)
      : "memory");
}

// Orders this thread's accesses to device memory before and after it, as other blocks see them. Weaker and
// faster than __threadfence, which is sequentially consistent.
__device__ __forceinline__ void FenceGpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ---- wgmma ----

// wgmma.fence: before the first wgmma, and after registers of an accumulator or operand were modified.
__device__ __forceinline__ void WarpgroupArrive() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void WarpgroupCommitBatch() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until at most `pending` groups are in flight; the operands of the others may then be overwritten.
template <int pending>
__device__ __forceinline__ void WarpgroupWait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
// Accumulators: with w = warp % 4, g = lane / 4, t = lane % 4, d[4 j .. 4 j + 1] hold D[16 w + g][8 j + 2 t
// ..], and d[4 j + 2 .. 4 j + 3] hold D[16 w + g + 8][8 j + 2 t ..]. A tile of 64 rows and N outputs has N /
// 2 per thread.
//
// FOREDRAFT_D<n>(i): the asm operands d[i .. i + n). FOREDRAFT_NAMES<n>: the names of the first n operands.
#define FOREDRAFT_D8(i)                                                                                   \
  "+f"(d[(i)]), "+f"(d[(i) + 1]), "+f"(d[(i) + 2]), "+f"(d[(i) + 3]), "+f"(d[(i) + 4]), "+f"(d[(i) + 5]), \
      "+f"(d[(i) + 6]), "+f"(d[(i) + 7])
#define FOREDRAFT_D16(i) FOREDRAFT_D8(i), FOREDRAFT_D8((i) + 8)
#define FOREDRAFT_D32(i) FOREDRAFT_D16(i), FOREDRAFT_D16((i) + 16)
#define FOREDRAFT_D64(i) FOREDRAFT_D32(i), FOREDRAFT_D32((i) + 32)
#define FOREDRAFT_NAMES8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define FOREDRAFT_NAMES16 FOREDRAFT_NAMES8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define FOREDRAFT_NAMES32 \
  FOREDRAFT_NAMES16       \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define FOREDRAFT_NAMES64                                                            \
  FOREDRAFT_NAMES32                                                                  \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// Defines the functions below for `count` accumulators and a tile of `n` outputs; `a_name`, `b_name` and
// `p_name` are the operands after these.
//
// WgmmaBf16, WgmmaF8: d = a b^T (+ d if `add`) over one k group of 32 bytes (k16 BF16, k32 E4M3), a of 64
// rows, b of n rows, both K-major. Called by all four warps of a warpgroup.
//
// WarpgroupWaitAll, WarpgroupWaitAllButOne: WarpgroupWait<0> and <1> with d as an operand (CUTLASS:
// warpgroup_fence_operand), so that the compiler does not move reads of d before the wait.
#define FOREDRAFT_WGMMA(count, n, a_name, b_name, p_name)                                           \
  __device__ __forceinline__ void WgmmaBf16(float(&d)[count], uint64_t a, uint64_t b, bool add) {   \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " p_name                                 \
                 ", 0;\n\t"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.bf16.bf16 {" FOREDRAFT_NAMES##count \
                 "}, " a_name ", " b_name ", add, 1, 1, 0, 0;\n\t}"                                 \
                 : FOREDRAFT_D##count(0)                                                            \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                     \
  }                                                                                                 \
  __device__ __forceinline__ void WgmmaF8(float(&d)[count], uint64_t a, uint64_t b, bool add) {     \
    asm volatile("{\n\t.reg .pred add;\n\tsetp.ne.b32 add, " p_name                                 \
                 ", 0;\n\t"                                                                         \
                 "wgmma.mma_async.sync.aligned.m64n" n "k32.f32.e4m3.e4m3 {" FOREDRAFT_NAMES##count \
                 "}, " a_name ", " b_name ", add, 1, 1;\n\t}"                                       \
                 : FOREDRAFT_D##count(0)                                                            \
                 : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                     \
  }                                                                                                 \
  __device__ __forceinline__ void WarpgroupWaitAll(float(&d)[count]) {                              \
    asm volatile("wgmma.wait_group.sync.aligned 0;" : FOREDRAFT_D##count(0)::"memory");             \
  }                                                                                                 \
  __device__ __forceinline__ void WarpgroupWaitAllButOne(float(&d)[count]) {                        \
    asm volatile("wgmma.wait_group.sync.aligned 1;" : FOREDRAFT_D##count(0)::"memory");             \
  }

FOREDRAFT_WGMMA(8, "16", "%8", "%9", "%10")
FOREDRAFT_WGMMA(16, "32", "%16", "%17", "%18")
FOREDRAFT_WGMMA(32, "64", "%32", "%33", "%34")
FOREDRAFT_WGMMA(64, "128", "%64", "%65", "%66")

#undef FOREDRAFT_WGMMA

// ---- registers ----

template <int count>
__device__ __forceinline__ void WarpgroupRegAlloc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ __forceinline__ void WarpgroupRegDealloc() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

}  // namespace foredraft::cuda
