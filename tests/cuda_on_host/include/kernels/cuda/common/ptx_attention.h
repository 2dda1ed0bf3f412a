#pragma once

// The emulation of kernels/cuda/common/ptx_attention.h.

#include "kernels/cuda/common/ptx_hopper.h"

namespace foredraft::cuda {

inline void FenceProxyAsync(CUDA_ON_HOST_CALLER) { cuda_on_host::FenceAsyncProxy({file, line}); }

inline uint64_t Opaque(uint64_t value) { return value; }
inline uint32_t Opaque(uint32_t value) { return value; }

inline float Exp2(float x) { return exp2f(x); }

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

namespace on_host {

struct OperandALane {
  const uint32_t* registers;
  PendingWgmma* product;
};

// Four lanes have the two rows that their outputs need.
inline void GatherRows(uint32_t, cuda_on_host::LaneArguments lanes, const cuda_on_host::SourceLocation&) {
  for (int lane = 0; lane < 32; ++lane) {
    PendingWgmma& product = *static_cast<OperandALane*>(lanes[lane])->product;
    for (int t = 0; t < 4; ++t) {
      const uint32_t* const a = static_cast<OperandALane*>(lanes[lane / 4 * 4 + t])->registers;
      for (int i = 0; i < 4; ++i) std::memcpy(&product.a_rows[i % 2][i / 2 * 16 + 4 * t], &a[i], 4);
    }
  }
}

}  // namespace on_host

inline void WgmmaF8(float (&d)[16], const uint32_t (&a)[4], uint64_t b, bool add, CUDA_ON_HOST_CALLER) {
  on_host::PendingWgmma product = {.d = d,
                                   .a = 0,
                                   .b = b,
                                   .add = add,
                                   .f8 = true,
                                   .columns = 32,
                                   .location = {file, line},
                                   .a_registers = a};
  std::memcpy(product.a_at_issue, a, sizeof(product.a_at_issue));
  on_host::OperandALane lane = {a, &product};
  cuda_on_host::MeetLanes(0xffffffffu, &on_host::GatherRows, &lane, {file, line});
  on_host::StartWgmma(product);
}

}  // namespace foredraft::cuda
