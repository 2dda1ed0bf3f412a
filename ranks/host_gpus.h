#pragma once

// The GPUs of this host, asked of the driver's management library (NVML), which opens no CUDA context: the
// daemon decides how many ranks there are before each of them chooses its GPU.

#include <cstdint>
#include <string>
#include <vector>

namespace foredraft {

struct HostGpu {
  std::string name;
  int64_t free_bytes = 0;
};

// The GPUs that CUDA_VISIBLE_DEVICES names, in its order, or all where it is not set; the list ends before
// the first one that the driver does not know. Empty without a driver.
std::vector<HostGpu> ReadHostGpus();

}  // namespace foredraft
