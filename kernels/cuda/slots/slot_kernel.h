#pragma once

// A slot op whose seats are computed by a function of kernels/rules: a thread per seat. Each seat is a chain
// of dependent loads, so only latency matters: small blocks spread the warps over the multiprocessors.

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/ops/slots.h"

namespace foredraft::cuda {

inline constexpr int32_t kSeatsPerBlock = 32;

inline LaunchShape ThreadPerSeat(int32_t seats) {
  return {.grid = dim3((seats + kSeatsPerBlock - 1) / kSeatsPerBlock), .block = dim3(kSeatsPerBlock)};
}

__device__ __forceinline__ int32_t SeatOfThread() {
  return static_cast<int32_t>(blockIdx.x * blockDim.x + threadIdx.x);
}

template <class Params, void (*kRule)(const Params&, int32_t seat)>
__global__ void SlotKernel(const __grid_constant__ Params p) {
  GridDependencySync();
  if (SeatOfThread() < SeatCount(p)) kRule(p, SeatOfThread());
}

template <auto kRule, class Params>
void LaunchSlotKernel(Stream& stream, const Params& p) {
  Launch(stream, SlotKernel<Params, kRule>, ThreadPerSeat(SeatCount(p)), p);
}

}  // namespace foredraft::cuda
