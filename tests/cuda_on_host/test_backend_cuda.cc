#include <cuda_runtime.h>

#include "base/check.h"
#include "engine/comm/rank_rows.h"
#include "tests/cuda_on_host/counts.h"
#include "tests/ops/test_backend.h"

namespace foredraft {

std::string TestBackend() { return "cuda"; }

void UseDeviceOfRank(int rank) {
  cuda_on_host::SetDeviceCount(kMaxRanks);
  CHECK_EQ(cudaSetDevice(rank), cudaSuccess);
}

}  // namespace foredraft
