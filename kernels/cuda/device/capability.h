#pragma once

// What the kernels may use on device 0, by its compute capability. Read once, when first asked; constant for
// the process. Any thread.
//
// clang-format off
//   capability                       kernels
//   9.0 (H100, H200, GH200)          Hopper's (wgmma, TMA) where they support the shape, the generic ones else
//   8.0, 8.9, 10.0, 12.0, any other  the generic ones: mma.sync and cp.async
//   that is built
// clang-format on
//
// Hopper's kernels are compiled for sm_90a alone, the others for FOREDRAFT_CUDA_ARCHS.

#include <cstddef>

namespace foredraft::cuda {

bool RunsHopperKernels();

// Programmatic dependent launches need capability 9.0; before it every launch waits for the previous one.
bool LaunchesProgrammatically();

// The dynamic shared memory that a thread block may have: 227 KB on 9.0 and 10.0, 163 KB on 8.0, 99 KB on
// 8.9 and 12.0.
size_t SharedMemoryLimit();

}  // namespace foredraft::cuda
