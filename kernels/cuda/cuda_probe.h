#ifndef FOREDRAFT_KERNELS_CUDA_CUDA_PROBE_H_
#define FOREDRAFT_KERNELS_CUDA_CUDA_PROBE_H_

// Whether this machine could run the CUDA backend: says in one line what is missing.

#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

// Launches an empty kernel on device 0. Name and compute capability, "NVIDIA H200, sm_90"; UNAVAILABLE with
// CUDA's own words where there is no device or it cannot run this binary's code.
absl::StatusOr<std::string> ProbeCudaDevice();

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CUDA_CUDA_PROBE_H_
