#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/kernels.h"

namespace foredraft {

const Ops& CudaOps() {
  static constexpr Ops ops = {};
  return ops;
}

}  // namespace foredraft
