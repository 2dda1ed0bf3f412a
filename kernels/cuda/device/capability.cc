#include "kernels/cuda/device/capability.h"

#include <cuda_runtime.h>

#include "kernels/cuda/device/cuda_memory.h"

namespace foredraft::cuda {
namespace {

struct Capability {
  int major = 0;
  int minor = 0;
  size_t shared_bytes = 0;
};

int Attribute(cudaDeviceAttr attribute) {
  int value = 0;
  CheckCuda(cudaDeviceGetAttribute(&value, attribute, 0), "attribute of device 0");
  return value;
}

const Capability& Device0() {
  static const Capability capability = {
      .major = Attribute(cudaDevAttrComputeCapabilityMajor),
      .minor = Attribute(cudaDevAttrComputeCapabilityMinor),
      .shared_bytes = static_cast<size_t>(Attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin))};
  return capability;
}

}  // namespace

bool RunsHopperKernels() { return Device0().major == 9 && Device0().minor == 0; }
bool LaunchesProgrammatically() { return Device0().major >= 9; }
size_t SharedMemoryLimit() { return Device0().shared_bytes; }

}  // namespace foredraft::cuda
