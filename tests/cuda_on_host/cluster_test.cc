// Clusters in the CUDA emulation: what blocks do to each other's shared memory, and the faults that it
// detects.

#include <cuda_runtime.h>

#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/ptx_cluster.h"
#include "tests/cuda_on_host/launch.h"

namespace cuda_on_host {
namespace {

namespace fc = foredraft::cuda;

constexpr unsigned kBlocks = 4;  // of a cluster
constexpr unsigned kThreads = 64;

enum class Fault {
  kNone,
  kNoArrival,    // of block 1 at block 2
  kNoInitFence,  // in block 3
  kNoSuchBlock,
  kNoWait,  // block 1 ends, and block 0 writes
  kNoSync,  // by a half of the threads
};

struct RingParams {
  fc::TensorMap tensor;  // a box of 64 bytes
  int* out;              // [blocks, 2]: what came from the block before, and by the load of the first one
};
struct RingShared {
  alignas(128) int box[16];
  uint4 stored;
  fc::Mbarrier full, all;
};

__device__ bool Starts() { return threadIdx.x == 0; }

// Every block stores its rank in the next one's memory, and the first loads a box into all.
template <Fault fault>
__global__ void Ring(const __grid_constant__ RingParams p) {
  RingShared& shared = fc::SharedStorage<RingShared>();
  const uint32_t rank = fc::ClusterRank();
  const uint64_t policy = fc::CachePolicy<fc::CacheHint::kEvictFirst>();
  if (Starts()) {
    fc::MbarrierInit(shared.full, 1);
    fc::MbarrierInit(shared.all, kBlocks);
    if (fault != Fault::kNoInitFence || rank != 3) fc::FenceMbarrierInit();
  }
  fc::ClusterStart();
  if (Starts()) {
    fc::MbarrierArriveExpectTx(shared.full, sizeof(uint4) + sizeof(shared.box));
    const uint32_t next = fault == Fault::kNoSuchBlock ? kBlocks : (rank + 1) % kBlocks;
    fc::StoreAsyncAt(&shared.stored, {rank, 0, 0, 0}, shared.full, next);
    if (rank == 0) fc::TmaLoadMulticast(shared.box, p.tensor, 0, 0, 0, shared.full, 0b1111, policy);
  }
  fc::MbarrierWait(shared.full, 0, "ring full");
  if (Starts()) {
    p.out[2 * blockIdx.x] = static_cast<int>(shared.stored.x);
    p.out[2 * blockIdx.x + 1] = shared.box[5];
    for (uint32_t to = 0; to < kBlocks; ++to) {
      if (fault == Fault::kNoArrival && rank == 1 && to == 2) continue;
      fc::MbarrierArriveAt(shared.all, to);
    }
  }
  if (fault == Fault::kNoWait && rank == 1) return;
  if (fault == Fault::kNoWait && rank == 0 && Starts()) {
    for (int i = 0; i < 8; ++i) fc::StoreAsyncAt(&shared.stored, {}, shared.full, 1);
  }
  fc::MbarrierWait(shared.all, 0, "all have read");
  if (fault == Fault::kNoSync && threadIdx.x >= kThreads / 2) return;
  if (fault != Fault::kNone) fc::ClusterSync();
}

cudaError_t StartRing(void (*kernel)(RingParams), unsigned blocks, const RingParams& p, unsigned cluster) {
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {cluster, 1, 1};
  cudaLaunchConfig_t config = {};
  config.attrs = &attribute;
  config.numAttrs = 1;
  config.gridDim = blocks;
  config.blockDim = kThreads;
  config.dynamicSmemBytes = sizeof(RingShared);
  return cudaLaunchKernelEx(&config, kernel, p);
}

RingParams Params(unsigned blocks) {
  std::vector<int> values(16);
  values[5] = 7;
  const int* const x = Device(values);
  return {fc::EncodeTensorMap({.data = x,
                               .element_bytes = 4,
                               .extent = {16, 1, 1},
                               .pitch = {64, 64},
                               .box = {16, 1, 1},
                               .swizzled = false}),
          Device(std::vector<int>(2 * blocks))};
}

TEST(Cluster, BlocksWriteEachOthersSharedMemory) {
  constexpr unsigned kAll = 3 * kBlocks;
  const RingParams params = Params(kAll);
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(StartRing(&Ring<Fault::kNone>, kAll, params, kBlocks), cudaSuccess);
    const std::vector<int> out = Host(params.out, 2 * kAll);
    for (int block = 0; block < static_cast<int>(kAll); ++block) {
      EXPECT_EQ(out[2 * block], (block + 3) % 4);
      EXPECT_EQ(out[2 * block + 1], 7);
    }
  }
}

TEST(Cluster, TheGridHasWholeClustersOfAFewBlocks) {
  const RingParams params = Params(18);
  EXPECT_EQ(StartRing(&Ring<Fault::kNone>, 6, params, kBlocks), cudaErrorInvalidClusterSize);
  EXPECT_EQ(StartRing(&Ring<Fault::kNone>, 18, params, 9), cudaErrorInvalidClusterSize);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidClusterSize);
}

TEST(ClusterDeathTest, FaultsAbortAndSayWhere) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto run = [](void (*kernel)(RingParams)) {
    ASSERT_EQ(StartRing(kernel, kBlocks, Params(kBlocks), kBlocks), cudaSuccess);
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(
      run(&Ring<Fault::kNoArrival>),
      "no thread of the cluster can run(.|\n)*block 2(.|\n)*\"all have read\", parity 0: 0 bytes and 1 "
      "arrivals missing, .*cluster_test.cc");
  EXPECT_DEATH(run(&Ring<Fault::kNoInitFence>), "another block, initialised without a fence.mbarrier_init");
  EXPECT_DEATH(run(&Ring<Fault::kNoSuchBlock>), "block 4 of a cluster of 4");
  EXPECT_DEATH(run(&Ring<Fault::kNoWait>), "block 1 of the cluster, which has ended|copies .* on their way");
  EXPECT_DEATH(run(&Ring<Fault::kNoSync>), "the cluster's barrier, 128 arrivals missing");
}

}  // namespace
}  // namespace cuda_on_host
