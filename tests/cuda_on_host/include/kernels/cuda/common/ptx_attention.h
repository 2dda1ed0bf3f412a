#pragma once

// The emulation of kernels/cuda/common/ptx_attention.h.

#include "kernels/cuda/common/ptx_hopper.h"

namespace foredraft::cuda {

inline void FenceProxyAsync(CUDA_ON_HOST_CALLER) { cuda_on_host::FenceAsyncProxy({file, line}); }

inline uint64_t Opaque(uint64_t value) { return value; }

inline void MbarrierWaitUnlimited(Mbarrier& barrier, uint32_t parity, CUDA_ON_HOST_CALLER) {
  MbarrierWait(barrier, parity, "unlimited", file, line);
}

template <int threads>
void NamedBarrierSync(int barrier, CUDA_ON_HOST_CALLER) {
  static_assert(threads % 32 == 0);
  CHECK(barrier > 0 && barrier < 16) << "named barrier " << barrier;
  cuda_on_host::NamedBarrier(barrier, threads, {file, line});
}

inline uint64_t MnMajorDescriptor(const void* tile, int bytes_to_next) {
  constexpr uint64_t kEightRows = 1024;
  return static_cast<uint64_t>(SharedAddress(tile) >> 4 & 0x3fffu) |
         static_cast<uint64_t>(bytes_to_next >> 4) << 16 | (kEightRows >> 4) << 32 | uint64_t{1} << 62;
}
inline constexpr uint64_t kDescriptor16Rows = 16 * kTileRowBytes >> 4;

inline void WgmmaBf16MnMajorB(float (&d)[128], uint64_t a, uint64_t b, bool add, CUDA_ON_HOST_CALLER) {
  on_host::StartWgmma({.d = d,
                       .a = a,
                       .b = b,
                       .add = add,
                       .f8 = false,
                       .columns = 256,
                       .location = {file, line},
                       .mn_major_b = true});
}

}  // namespace foredraft::cuda
