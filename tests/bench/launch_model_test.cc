#include "tests/bench/launch_model.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>

#include "tests/bench/op_launches.h"
#include "tests/bench/paper_device.h"

namespace foredraft {
namespace {

const GpuModel& H200() { return *FindGpuModel("h200"); }

TEST(LaunchModel, FindsADeviceByItsName) {
  EXPECT_EQ(FindGpuModel("cuda NVIDIA H200 sm_90a 132 SMs, cublasLt 13.1.0"), &H200());
  EXPECT_EQ(FindGpuModel("NVIDIA H100 80GB HBM3")->name, "h100");
  EXPECT_EQ(FindGpuModel("cpu avx2"), nullptr);
}

TEST(LaunchModel, BytesInFlightBoundABlock) {
  const double latency = H200().memory_latency;
  const KernelLaunch launch = {.items = 1, .memory_bytes = 1e6, .item_bytes = 1e6, .in_flight = 9000};
  EXPECT_DOUBLE_EQ(LaunchSeconds(launch, H200()), 1e6 / (9000 / latency));
  KernelLaunch deep = launch;
  deep.in_flight = 1e6;  // more than a multiprocessor takes
  EXPECT_DOUBLE_EQ(LaunchSeconds(deep, H200()), 1e6 / H200().multiprocessor_rate);
}

TEST(LaunchModel, BlocksOfAMultiprocessorShareIt) {
  const KernelLaunch alone = {.items = 132, .item_bytes = 1e6, .in_flight = 1e6};
  KernelLaunch two = alone;
  two.items = 264;
  two.blocks_per_multiprocessor = 2;
  EXPECT_DOUBLE_EQ(LaunchSeconds(two, H200()), 2 * LaunchSeconds(alone, H200()));
}

TEST(LaunchModel, ManyBlocksAreBoundByMemory) {
  const KernelLaunch launch = {.items = 132, .memory_bytes = 132e6, .item_bytes = 1e6, .in_flight = 1e6};
  EXPECT_DOUBLE_EQ(LaunchSeconds(launch, H200()), 132e6 / H200().memory_rate);
}

TEST(LaunchModel, OneItemMoreThanBlocksIsAnotherWave) {
  KernelLaunch launch = {.items = 132, .item_bf16_flops = 1e9};
  const double one_wave = LaunchSeconds(launch, H200());
  EXPECT_DOUBLE_EQ(one_wave, 132e9 / H200().bf16_flops);
  launch.items = 133;
  EXPECT_DOUBLE_EQ(LaunchSeconds(launch, H200()), 2 * one_wave);
  EXPECT_DOUBLE_EQ(Waves(launch, H200()), 133.0 / 132);
}

TEST(LaunchModel, AChainIsNotHidden) {
  const KernelLaunch launch = {.items = 264, .memory_bytes = 1, .chain_seconds = 5e-6, .fixed_seconds = 1e-6};
  EXPECT_DOUBLE_EQ(LaunchSeconds(launch, H200()), 11e-6);
}

PackedWeight WeightOf(int n, int k, DType dtype) {
  static const char data = 0;
  return {.data = &data, .n = n, .k = k, .dtype = dtype};
}

GemmParams GemmOf(int rows, int n, int k, DType dtype) {
  static float out;
  static bf16 x;
  static uint8_t codes;
  static float scales;
  GemmParams p = {.out = Dense(&out, rows, n), .x = Dense<const bf16>(&x, rows, k)};
  p.weight = WeightOf(n, k, dtype);
  if (dtype == DType::kF8E4M3) p.x_f8 = {&codes, &scales, rows, k, k, (rows + 3) / 4 * 4};
  return p;
}

TEST(OpLaunches, AGemmTakesAtLeastItsRoofline) {
  const DeviceRates rates = {
      .bytes_per_second = H200().memory_rate, .bf16_flops = H200().bf16_flops, .fp8_flops = H200().fp8_flops};
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    for (const int n : {256, 2112, 7168, 24576, 129280}) {
      double fewer_rows = 0;
      for (const int rows : {1, 8, 32, 64}) {
        const GemmParams p = GemmOf(rows, n, 7168, dtype);
        const double seconds = OpSeconds(LaunchesOf(p, {}, H200()), H200());
        EXPECT_GE(seconds, RooflineSeconds(CostOf(p), rates)) << n << " outputs, " << rows << " rows";
        EXPECT_GE(seconds, fewer_rows) << n << " outputs, " << rows << " rows";
        fewer_rows = seconds;
      }
    }
  }
}

TEST(OpLaunches, RowsThatAreNotQuantisedCostALaunch) {
  GemmParams p = GemmOf(32, 7168, 16384, DType::kF8E4M3);
  EXPECT_EQ(LaunchesOf(p, {}, H200()).size(), 1);
  p.x_f8 = {};
  EXPECT_EQ(LaunchesOf(p, {}, H200()).size(), 2);
}

TEST(OpLaunches, OnlyTheExpertsOfThisRankHaveRows) {
  static float out;
  static bf16 x;
  const GroupedGemmParams p = {.out = Dense(&out, 8192, 7168),
                               .x = Dense<const bf16>(&x, 8192, 2048),
                               .experts = {.count = 2, .first = WeightOf(7168, 2048, DType::kBF16)}};
  const double all = OpSeconds(LaunchesOf(p, {}, H200()), H200());
  const double share = OpSeconds(LaunchesOf(p, {.expert_ranks = 8}, H200()), H200());
  EXPECT_LT(share, all / 2);
  EXPECT_LT(CostOf(p, {.expert_ranks = 8}).bytes, CostOf(p).bytes / 2);
}

// ---- the device on paper ----

struct Paper {
  PaperDevice device{H200()};
  std::unique_ptr<Stream> stream = device.CreateStream();

  double Seconds(const std::function<void()>& submit) {
    const auto start = device.CreateEvent(), end = device.CreateEvent();
    start->Record(*stream);
    submit();
    end->Record(*stream);
    return end->SecondsSince(*start);
  }
};

GemmParams LongGemm() { return GemmOf(64, 24576, 7168, DType::kBF16); }
AddParams ShortAdd() {
  static float out;
  return {.out = Dense(&out, 1, 1024), .x = Dense<const float>(&out, 1, 1024)};
}

TEST(PaperDevice, BranchesRunBesideEachOther) {
  Paper paper;
  const auto submit = [&](Stream& side) {
    for (int i = 0; i < 20; ++i) paper.device.ops().add(side, ShortAdd());
    for (int i = 0; i < 20; ++i) paper.device.ops().add(*paper.stream, ShortAdd());
  };
  const auto captured = [&](const std::function<void()>& record) {
    const auto graph = paper.device.Capture(*paper.stream, record);
    return paper.Seconds([&] { graph->Replay(*paper.stream); });
  };
  const double in_line = captured([&] { submit(*paper.stream); });
  const double forked = captured([&] {
    submit(paper.stream->Fork());
    paper.stream->Join();
  });
  EXPECT_NEAR(forked, in_line / 2, 3 * H200().edge_seconds);
}

TEST(PaperDevice, BranchesShareTheMemory) {
  Paper paper;
  const double one = paper.Seconds([&] { paper.device.ops().gemm(*paper.stream, LongGemm()); });
  const double both = paper.Seconds([&] {
    paper.device.ops().gemm(paper.stream->Fork(), LongGemm());
    paper.device.ops().gemm(*paper.stream, LongGemm());
    paper.stream->Join();
  });
  EXPECT_GT(both, 1.8 * one - 2 * H200().edge_seconds - 5e-6);
}

TEST(PaperDevice, EagerLaunchesTakeTheHostsTime) {
  Paper paper;
  const auto submit = [&] {
    for (int i = 0; i < 100; ++i) paper.device.ops().add(*paper.stream, ShortAdd());
  };
  const double eager = paper.Seconds(submit);
  const auto graph = paper.device.Capture(*paper.stream, submit);
  const double replayed = paper.Seconds([&] { graph->Replay(*paper.stream); });
  EXPECT_GE(eager, 100 * H200().host_seconds);
  EXPECT_LT(replayed, eager);
  EXPECT_EQ(graph->node_count(), 100);
}

TEST(PaperDevice, NamesItsKernels) {
  Paper paper;
  PaperDevice::TakeKernels();
  paper.device.ops().add(*paper.stream, ShortAdd());
  paper.device.ops().gemm(*paper.stream, LongGemm());
  paper.device.ops().add(*paper.stream, ShortAdd());
  const std::vector<PaperKernel> kernels = PaperDevice::TakeKernels();
  ASSERT_EQ(kernels.size(), 2);
  EXPECT_EQ(kernels[0].kernel, "HopperGemm");
  EXPECT_EQ(kernels[1].kernel, "Add");
  EXPECT_EQ(kernels[1].launches, 2);
}

}  // namespace
}  // namespace foredraft
