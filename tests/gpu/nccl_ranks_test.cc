// Two ranks over NCCL, as threads: on two GPUs if there are two, else on one, which NCCL refuses in the
// versions known today ("Duplicate GPU detected"). The test then says so and is skipped.

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include "kernels/cuda/device/cuda_memory.h"
#include "tests/engine/comm/communicator_contract.h"

namespace foredraft {
namespace {

TEST(NcclRanks, TwoRanksExchangeRows) {
  int gpus = 0;
  CheckCuda(cudaGetDeviceCount(&gpus), "count the GPUs");
  auto group = TryConnectRanks(2, kPatience, kPatience);
  if (!group.ok() && gpus < 2) {
    GTEST_SKIP() << "two ranks on one GPU: not run, NCCL refuses: " << group.status();
  }
  ASSERT_TRUE(group.ok()) << group.status();
  ExpectAllGather(*group);
  ExpectAllToAll(*group);
  ExpectSets(*group);
  ExpectHostCollectives(*group);
}

}  // namespace
}  // namespace foredraft
