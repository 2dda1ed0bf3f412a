#pragma once

// Checks that this machine can run the CUDA backend; the error says in one line what is missing.

#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

struct CudaProbe {
  std::string gpu;          // "NVIDIA H200"
  std::string hardware_id;  // Device::hardware_id
  int major = 0;            // compute capability
  int minor = 0;
};

// Launches an empty kernel on the thread's current device. UNAVAILABLE, with CUDA's error message, if there
// is no device; where this binary has no code for it, with the option to build it with.
absl::StatusOr<CudaProbe> ProbeCudaDevice();

}  // namespace foredraft
