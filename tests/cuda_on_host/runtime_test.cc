// The CUDA emulation itself: its results, and the faults that it detects.

#include <cuda_runtime.h>

#include <functional>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/ptx_hopper.h"
#include "tests/cuda_on_host/counts.h"
#include "tests/cuda_on_host/launch.h"

namespace cuda_on_host {
namespace {

struct SumParams {
  int* out;  // [blocks]
  const int* x;
};
struct SumShared {
  int sums[32];
};

// Sum of a block's elements by shuffles, then through shared memory.
template <bool with_barrier>
__global__ void Sum(const __grid_constant__ SumParams p) {
  SumShared& shared = foredraft::cuda::SharedStorage<SumShared>();
  int sum = p.x[blockIdx.x * blockDim.x + threadIdx.x];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) shared.sums[threadIdx.x / 32] = sum;
  if (with_barrier) __syncthreads();
  if (threadIdx.x == 0) {
    int total = 0;
    for (unsigned i = 0; i < blockDim.x / 32; ++i) total += shared.sums[i];
    p.out[blockIdx.x] = total;
  }
}

bool SumIsRight(void (*kernel)(SumParams)) {
  std::vector<int> x(8 * 256);
  std::vector<int> expected(8);
  for (size_t i = 0; i < x.size(); ++i) {
    x[i] = static_cast<int>(i * i % 97);
    expected[i / 256] += x[i];
  }
  int* out = Device(std::vector<int>(8));
  int* in = Device(x);
  Start(kernel, 8, 256, sizeof(SumShared), {out, in});
  const bool right = Host(out, 8) == expected;
  cudaFree(out);
  cudaFree(in);
  return right;
}

TEST(Block, MeetsAtBarriersAndInShuffles) {
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(SumIsRight(&Sum<true>));
}

TEST(Block, AMissingBarrierIsSeen) { EXPECT_FALSE(SumIsRight(&Sum<false>)); }

struct Nothing {};

__global__ void DivergentBarrier(const __grid_constant__ Nothing) {
  if (threadIdx.x < 32) __syncthreads();
}
__global__ void TwoBarriers(const __grid_constant__ Nothing) {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}
__global__ void MissingLane(const __grid_constant__ Nothing) {
  if (threadIdx.x != 5) __syncwarp();
}
__global__ void PastSharedMemory(const __grid_constant__ Nothing) {
  foredraft::cuda::SharedStorage<SumShared>().sums[blockDim.x / 2] = 1;
}

TEST(BlockDeathTest, FaultsAbortAndSayWhere) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto run = [](void (*kernel)(Nothing)) {
    Start(kernel, 1, 64, sizeof(SumShared), {});
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(run(&DivergentBarrier),
               "32 threads have ended(.|\n)*32 threads wait at __syncthreads, .*runtime_test.cc");
  EXPECT_DEATH(run(&TwoBarriers), "different lines");
  EXPECT_DEATH(run(&MissingLane), "31 threads wait for the lanes of their mask");
  EXPECT_DEATH(run(&PastSharedMemory), "written past its 128 bytes");
}

struct LoadParams {
  foredraft::cuda::TensorMap tensor;  // a box of 64 bytes
  uint32_t announced;                 // bytes
  int32_t first;                      // the innermost coordinate
  float* out;                         // [1]
};
struct LoadShared {
  alignas(128) float box[16];
  foredraft::cuda::Mbarrier full;
};

// Loads a box; all threads wait for it.
__global__ void LoadBox(const __grid_constant__ LoadParams p) {
  namespace fc = foredraft::cuda;
  LoadShared& shared = fc::SharedStorage<LoadShared>();
  if (threadIdx.x == 0) {
    fc::MbarrierInit(shared.full, 1);
    fc::FenceMbarrierInit();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    fc::MbarrierArriveExpectTx(shared.full, p.announced);
    fc::TmaLoad(shared.box, p.tensor, p.first, 0, 0, shared.full,
                fc::CachePolicy<fc::CacheHint::kEvictFirst>());
  }
  fc::MbarrierWait(shared.full, 0, "box full");
  if (threadIdx.x == 0) *p.out = shared.box[5];
}

TEST(BlockDeathTest, AWrongByteCountNamesTheBarrierAndAnUnalignedLoadItself) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  std::vector<float> values(16);
  values[5] = 7.0f;
  float* const x = Device(values);
  float* const out = Device(std::vector<float>(1));
  const foredraft::cuda::TensorMap tensor = foredraft::cuda::EncodeTensorMap({.data = x,
                                                                              .element_bytes = 4,
                                                                              .extent = {16, 1, 1},
                                                                              .pitch = {64, 64},
                                                                              .box = {16, 1, 1},
                                                                              .swizzled = false});
  const auto run = [&](uint32_t announced, int32_t first = 0) {
    Start(&LoadBox, 1, 64, sizeof(LoadShared), {tensor, announced, first, out});
    cudaDeviceSynchronize();
  };
  run(64);
  EXPECT_EQ(Host(out, 1), std::vector<float>{7.0f});
  run(64, -4);
  EXPECT_EQ(Host(out, 1), std::vector<float>{0.0f});
  EXPECT_DEATH(run(64, 2), "runtime_test.cc:.*innermost coordinate that is not 16-byte aligned");
  EXPECT_DEATH(run(80),
               "wait for memory, mbarrier \"box full\", parity 0: 16 bytes and 0 arrivals missing, "
               ".*runtime_test.cc");
  EXPECT_DEATH(run(48), "mbarrier: more bytes than announced");
  cudaFree(x);
  cudaFree(out);
}

enum class Touch { kAfterItsWait, kBeforeItsWait, kAfterAnothersWait, kWithoutWait };

// Threads read and write x.
template <Touch touch>
__global__ void TouchKernel(const __grid_constant__ SumParams p) {
  if (touch == Touch::kAfterItsWait) foredraft::cuda::GridDependencySync();
  if (touch == Touch::kAfterAnothersWait && threadIdx.x == 0) foredraft::cuda::GridDependencySync();
  __syncthreads();
  p.out[threadIdx.x] = p.x[threadIdx.x];
  if (touch == Touch::kBeforeItsWait) foredraft::cuda::GridDependencySync();
}

TEST(ProgrammaticLaunch, RunsAsAnyOther) {
  int* const out = Device(std::vector<int>(64));
  int* const x = Device(std::vector<int>(64, 5));
  Start(&TouchKernel<Touch::kAfterItsWait>, 1, 64, 0, {x, out});
  Start(&TouchKernel<Touch::kAfterItsWait>, 1, 64, 0, {out, x}, nullptr, true);
  EXPECT_EQ(Host(out, 64), std::vector<int>(64));
  cudaFree(out);
  cudaFree(x);
}

TEST(ProgrammaticLaunchDeathTest, AMissingOrLateWaitIsSeen) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto run = [](void (*kernel)(SumParams), bool behind_copy) {
    int* const out = Device(std::vector<int>(64));
    int* const x = Device(std::vector<int>(64, 5));
    Start(&TouchKernel<Touch::kAfterItsWait>, 1, 64, 0, {out, x});
    if (behind_copy) cudaMemcpyAsync(out, x, 4, cudaMemcpyDeviceToDevice, nullptr);
    Start(kernel, 1, 64, 0, {out, x}, nullptr, true);
    cudaDeviceSynchronize();
  };
  EXPECT_DEATH(run(&TouchKernel<Touch::kBeforeItsWait>, false), "touched before GridDependencyWait");
  EXPECT_DEATH(run(&TouchKernel<Touch::kAfterAnothersWait>, false), "touched before GridDependencyWait");
  EXPECT_DEATH(run(&TouchKernel<Touch::kWithoutWait>, false), "touched before GridDependencyWait");
  EXPECT_DEATH(run(&TouchKernel<Touch::kAfterItsWait>, true), "does not follow a kernel");
}

struct MmaParams {
  float* d;           // [16, 8]
  const uint16_t* a;  // [16, 16] BF16
  const uint16_t* b;  // [16, 8]
};
struct MmaShared {
  uint16_t a[16][16];
  uint16_t b[16][16];  // the upper 8 columns 0
};

// One tile by cp.async, ldmatrix and mma.
template <bool with_wait>
__global__ void Mma(const __grid_constant__ MmaParams p) {
  MmaShared& shared = foredraft::cuda::SharedStorage<MmaShared>();
  const int lane = static_cast<int>(threadIdx.x);
  foredraft::cuda::CpAsync16(&shared.a[lane / 2][lane % 2 * 8], p.a + lane / 2 * 16 + lane % 2 * 8);
  foredraft::cuda::CpAsync16(&shared.b[lane / 2][lane % 2 * 8], p.b + lane / 2 * 8, lane % 2 == 0);
  foredraft::cuda::CpAsyncCommit();
  if (with_wait) foredraft::cuda::CpAsyncWait<0>();
  __syncthreads();
  uint32_t a[4], b[4];
  foredraft::cuda::LdMatrix4(a, &shared.a[lane % 16][lane / 16 * 8]);
  foredraft::cuda::LdMatrix4Transposed(b, &shared.b[lane % 16][lane / 16 * 8]);
  float d[4] = {};
  foredraft::cuda::MmaBf16(d, a, {b[0], b[1]});
  for (int i = 0; i < 4; ++i) p.d[(lane / 4 + i / 2 * 8) * 8 + lane % 4 * 2 + i % 2] = d[i];
}

std::vector<float> MmaOf(void (*kernel)(MmaParams), const std::vector<uint16_t>& a,
                         const std::vector<uint16_t>& b) {
  const MmaParams params = {Device(std::vector<float>(128)), Device(a), Device(b)};
  Start(kernel, 1, 32, sizeof(MmaShared), params);
  return Host(params.d, 128);
}

TEST(Warp, MmaIsTheProductAndAMissingWaitIsSeen) {
  std::vector<uint16_t> a, b;
  for (int i = 0; i < 256; ++i) a.push_back(foredraft::ToBf16(static_cast<float>(i % 13 - 6)).bits);
  for (int i = 0; i < 128; ++i) b.push_back(foredraft::ToBf16(static_cast<float>(i % 7 - 3)).bits);
  std::vector<float> expected(128);
  for (int i = 0; i < 128; ++i) {
    for (int k = 0; k < 16; ++k) {
      expected[i] += foredraft::ToFloat({a[i / 8 * 16 + k]}) * foredraft::ToFloat({b[k * 8 + i % 8]});
    }
  }
  EXPECT_EQ(MmaOf(&Mma<true>, a, b), expected);
  for (const float value : MmaOf(&Mma<false>, a, b)) EXPECT_NE(value, value);  // NaN
}

struct WarpParams {
  int* out;  // [8, 32]
};
__global__ void Intrinsics(const __grid_constant__ WarpParams p) {
  const int lane = static_cast<int>(threadIdx.x);
  constexpr uint32_t kAll = 0xffffffffu;
  const int value = (lane * 7) % 32;
  p.out[lane] = __shfl_sync(kAll, value, 3);
  p.out[32 + lane] = __shfl_up_sync(kAll, value, 2);
  p.out[64 + lane] = __shfl_down_sync(kAll, value, 2, 8);
  p.out[96 + lane] = static_cast<int>(__ballot_sync(kAll, value > 16));
  p.out[128 + lane] = __reduce_max_sync(kAll, value);
  p.out[160 + lane] = __reduce_add_sync(kAll, value);
  p.out[192 + lane] =
      lane < 16 ? __reduce_min_sync(0xffffu, value + 100) : __reduce_min_sync(0xffff0000u, value);
  p.out[224 + lane] = static_cast<int>(__match_any_sync(kAll, value % 2));
}

TEST(Warp, IntrinsicsAreThePlainLoops) {
  int* out = Device(std::vector<int>(256));
  Start(&Intrinsics, 1, 32, 0, WarpParams{out});
  const std::vector<int> got = Host(out, 256);
  uint32_t ballot = 0, odd = 0;
  for (int lane = 0; lane < 32; ++lane) {
    if (lane * 7 % 32 > 16) ballot |= 1u << lane;
    if (lane * 7 % 32 % 2 == 1) odd |= 1u << lane;
  }
  for (int lane = 0; lane < 32; ++lane) {
    EXPECT_EQ(got[lane], 21);
    EXPECT_EQ(got[32 + lane], (lane < 2 ? lane : lane - 2) * 7 % 32);
    EXPECT_EQ(got[64 + lane], (lane % 8 < 6 ? lane + 2 : lane) * 7 % 32);
    EXPECT_EQ(static_cast<uint32_t>(got[96 + lane]), ballot);
    EXPECT_EQ(got[128 + lane], 31);
    EXPECT_EQ(got[160 + lane], 31 * 16);
    EXPECT_EQ(got[192 + lane], lane < 16 ? 100 : 1);
    EXPECT_EQ(static_cast<uint32_t>(got[224 + lane]), lane * 7 % 32 % 2 == 1 ? odd : ~odd);
  }
}

struct StoreParams {
  int* to;
  const int* from;
  int add;
};
__global__ void Store(const __grid_constant__ StoreParams p) { *p.to = *p.from + p.add; }

TEST(Stream, WorkIsDoneAtTheWaitAndNotBefore) {
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  int* x = Device(std::vector<int>{1});
  int result = -1;
  Start(&Store, 1, 1, 0, StoreParams{x, x, 5}, stream);
  ASSERT_EQ(cudaMemcpyAsync(&result, x, sizeof(int), cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(result, -1);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(result, 6);
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST(Stream, AnEventOrdersTwoStreams) {
  cudaStream_t first, second;
  cudaEvent_t event;
  cudaStreamCreateWithFlags(&first, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&second, cudaStreamNonBlocking);
  cudaEventCreate(&event);
  int* x = Device(std::vector<int>{1, 0});
  Start(&Store, 1, 1, 0, StoreParams{x, x, 1}, first);
  cudaEventRecord(event, first);
  cudaStreamWaitEvent(second, event);
  Start(&Store, 1, 1, 0, StoreParams{x + 1, x, 1}, second);
  cudaStreamSynchronize(second);
  EXPECT_EQ(Host(x, 2), (std::vector<int>{2, 3}));
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
}

TEST(Graph, RunsItsNodesInAnyOrderTheEdgesAllow) {
  cudaStream_t main, side;
  cudaEvent_t fork, join;
  cudaStreamCreateWithFlags(&main, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
  cudaEventCreate(&fork);
  cudaEventCreate(&join);
  // x[1] = x[0] + 1 on the side, x[2] = x[0] + 2, then x[3] = x[1] + 3; without a join the last may come
  // first.
  const auto capture = [&](bool joined, int* x, cudaGraph_t* graph) {
    EXPECT_EQ(cudaStreamBeginCapture(main, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    cudaEventRecord(fork, main);
    cudaStreamWaitEvent(side, fork);
    Start(&Store, 1, 1, 0, StoreParams{x + 1, x, 1}, side);
    Start(&Store, 1, 1, 0, StoreParams{x + 2, x, 2}, main);
    cudaEventRecord(join, side);
    if (joined) cudaStreamWaitEvent(main, join);
    Start(&Store, 1, 1, 0, StoreParams{x + 3, x + 1, 3}, main);
    return cudaStreamEndCapture(main, graph);
  };
  int* x = Device(std::vector<int>{10, 0, 0, 0});
  cudaGraph_t graph;
  EXPECT_EQ(capture(false, x, &graph), cudaErrorStreamCaptureUnjoined);
  ASSERT_EQ(capture(true, x, &graph), cudaSuccess);
  EXPECT_EQ(Host(x, 4), (std::vector<int>{10, 0, 0, 0})) << "a capture runs nothing";
  cudaGraphExec_t exec;
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  const Counts before = CurrentCounts();
  for (int i = 0; i < 10; ++i) {
    ASSERT_EQ(cudaGraphLaunch(exec, main), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(main), cudaSuccess);
    EXPECT_EQ(Host(x, 4), (std::vector<int>{10, 11, 12, 14}));
  }
  EXPECT_EQ(CurrentCounts().graph_launches - before.graph_launches, 10);
  EXPECT_EQ(CurrentCounts().launches, before.launches);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
}

TEST(Capture, ForbidsAllocationsAndWaits) {
  cudaStream_t stream;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, 16), cudaErrorStreamCaptureUnsupported);
  cudaGraph_t graph;
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  cudaGetLastError();
}

TEST(Launch, RefusesWhatADeviceRefuses) {
  cudaLaunchConfig_t config = {};
  config.gridDim = 1;
  config.blockDim = 1025;
  EXPECT_EQ(cudaLaunchKernelEx(&config, &Store, StoreParams{}), cudaErrorInvalidConfiguration);
  config.blockDim = 32;
  config.dynamicSmemBytes = 100000;
  EXPECT_EQ(cudaLaunchKernelEx(&config, &Store, StoreParams{}), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetAttribute(&Store, cudaFuncAttributeMaxDynamicSharedMemorySize, 232449),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(MemoryDeathTest, TheHostMayNotFollowADevicePointer) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  int* x = Device(std::vector<int>{1});
  EXPECT_DEATH(std::fprintf(stderr, "read %d\n", *static_cast<volatile int*>(x)), "");
  const auto write_past_the_end = [x] {
    Start(&Store, 1, 1, 0, StoreParams{x + 1, x, 1});
    cudaFree(x);
  };
  EXPECT_DEATH(write_past_the_end(), "written past the end of an allocation of 4 bytes|use-after-poison");
}

}  // namespace
}  // namespace cuda_on_host
