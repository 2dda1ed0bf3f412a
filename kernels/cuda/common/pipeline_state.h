#pragma once

// The stage that a producer or consumer of a TMA pipeline is at. Every stage has two mbarriers, full and
// empty.

#include <cstdint>

#include "kernels/cuda/common/ptx_hopper.h"

namespace foredraft::cuda {

// The n-th visit of a stage belongs to phase n; `parity` is that of n.
template <int kStages>
struct PipelineState {
  int stage = 0;
  uint32_t parity = 0;

  __device__ __forceinline__ void Next() {
    if (++stage == kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// A consumer warp has read all it needs of the stage. Called by all its lanes.
__device__ __forceinline__ void ReleaseStage(Mbarrier& empty) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) MbarrierArrive(empty);
}

}  // namespace foredraft::cuda
