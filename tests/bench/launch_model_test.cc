#include "tests/bench/launch_model.h"

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/gemm/gemm_plan.h"
#include "tests/bench/op_launches.h"
#include "tests/bench/paper_communicator.h"
#include "tests/bench/paper_device.h"
#include "tests/weight_formats.h"

namespace foredraft {
namespace {

const GpuModel& H200() { return *FindGpuModel("h200"); }

TEST(LaunchModel, FindsADeviceByItsName) {
  EXPECT_EQ(FindGpuModel("cuda NVIDIA H200 sm_90a 132 SMs, cublasLt 13.1.0"), &H200());
  EXPECT_EQ(FindGpuModel("NVIDIA H100 80GB HBM3")->name, "h100");
  EXPECT_EQ(FindGpuModel("cpu avx2"), nullptr);
}

TEST(LaunchModel, TakesMeasuredConstants) {
  const std::string path = testing::TempDir() + "measured.json";
  const auto with = [&](const char* text) {
    std::ofstream(path) << text;
    return WithMeasured(H200(), path);
  };
  const auto measured = with(R"({"follow_us": 0.5, "multiprocessor_gb_per_s": 80})");
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_DOUBLE_EQ(measured->follow_seconds, 0.5e-6);
  EXPECT_DOUBLE_EQ(measured->multiprocessor_rate, 80e9);
  EXPECT_EQ(measured->edge_seconds, H200().edge_seconds);
  EXPECT_EQ(with(R"({"edge_us": 0})").status().message(), path + ": edge_us: not a positive number");
  EXPECT_EQ(with(R"({"gap": 1})").status().message(), path + ": gap: unknown");
  EXPECT_EQ(with("[").status().message(), path + ": not a JSON object");
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
  return {.data = &data, .n = n, .k = k, .format = FormatOf(dtype)};
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

TEST(OpLaunches, AGemmOf4BitsIsItsPlan) {
  const DeviceRates rates = {
      .bytes_per_second = H200().memory_rate, .bf16_flops = H200().bf16_flops, .fp8_flops = H200().fp8_flops};
  for (const DType dtype : {DType::kInt4, DType::kF4E2M1}) {
    GemmParams p = GemmOf(4, 7168, 16384, dtype);
    const KernelLaunches launches = LaunchesOf(p, {}, H200());
    ASSERT_EQ(launches.size(), 1);
    EXPECT_EQ(launches[0].kernel, "Gemm4Bit");
    const int splits = cuda::Splits4Bit(7168, 16384, FormatOf(dtype));
    const cuda::GemmPlan plan =
        cuda::Plan4Bit({.n = 7168, .k = 16384, .rows = 4, .format = FormatOf(dtype)}, splits);
    EXPECT_EQ(launches[0].items, plan.items);
    EXPECT_NEAR(LaunchSeconds(launches[0], H200()), plan.microseconds * 1e-6,
                0.01 * plan.microseconds * 1e-6);
    EXPECT_GE(OpSeconds(launches, H200()), RooflineSeconds(CostOf(p), rates));
    // Less than a third of the bytes of BF16. The instructions that widen codes leave little of that gain.
    EXPECT_LT(CostOf(p).bytes, 0.3 * CostOf(GemmOf(4, 7168, 16384, DType::kBF16)).bytes);
    EXPECT_LT(OpSeconds(launches, H200()),
              OpSeconds(LaunchesOf(GemmOf(4, 7168, 16384, DType::kBF16), {}, H200()), H200()));
    p.form = GemmForm::kPrefill;
    EXPECT_EQ(LaunchesOf(p, {}, H200())[0].items, plan.items / splits);
  }
}

TEST(OpLaunches, ExpertsOf4BitsGatherTheirOwnRows) {
  static float out;
  static bf16 x;
  static int32_t x_rows;
  GroupedGemmParams p = {.out = Dense(&out, 256, 4096),
                         .x = Dense<const bf16>(&x, 64, 7168),
                         .x_rows = &x_rows,
                         .experts = {.count = 32, .first = WeightOf(4096, 7168, DType::kInt4)}};
  const KernelLaunches launches = LaunchesOf(p, {}, H200());
  ASSERT_EQ(launches.size(), 1);
  EXPECT_EQ(launches[0].kernel, "Gemm4Bit");
  EXPECT_GE(LaunchSeconds(launches[0], H200()), 32 * WeightBytes(p.experts.first) * 0.9 / H200().memory_rate);
}

TEST(OpLaunches, AGemmRunsTheTilesOfItsPlanInTheirTime) {
  // The router's 256 outputs in tiles of 16, k in 8 splits. q_a and kv_a: 2,112 outputs in tiles of 32, k in
  // 2.
  EXPECT_EQ(LaunchesOf(GemmOf(32, 256, 7168, DType::kBF16), {}, H200())[0].items, 16 * 8);
  const KernelLaunch q_a = LaunchesOf(GemmOf(4, 2112, 7168, DType::kF8E4M3), {}, H200())[0];
  EXPECT_EQ(q_a.items, 66 * 2);
  const cuda::GemmPlan plan = cuda::PlanGemm({.n = 2112, .k = 7168, .element_bytes = 1, .rows = 4}, 2);
  const double clocks = cuda::GemmRates().cycles_per_us * 1e6 / H200().clock;
  EXPECT_NEAR(LaunchSeconds(q_a, H200()), plan.microseconds * 1e-6, (clocks - 1) * plan.microseconds * 1e-6);
}

TEST(OpLaunches, OnlyTheDecodeFormSplitsK) {
  GemmParams p = GemmOf(32, 256, 7168, DType::kBF16);
  const double split = LaunchesOf(p, {}, H200())[0].items;
  p.form = GemmForm::kPrefill;
  EXPECT_LT(LaunchesOf(p, {}, H200())[0].items, split);
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

TEST(OpLaunches, AGatherOfFewPairsTakesNoLongerForManyRanks) {
  static uint8_t codes;
  static float scales;
  static int32_t x_rows;
  const auto gather = [](int pairs, int ranks) {
    GroupedGemmParams p = {.silu_f8 = {&codes, &scales, pairs, 2048, 2048, pairs},
                           .x_f8 = {&codes, &scales, 128, 7168, 7168, 128},
                           .x_rows = &x_rows,
                           .experts = {.count = 32, .first = WeightOf(4096, 7168, DType::kF8E4M3)}};
    const KernelLaunches launches = LaunchesOf(p, {.expert_ranks = ranks}, H200());
    EXPECT_EQ(launches[0].kernel, "CopyQuantizedKernel");
    return LaunchSeconds(launches[0], H200());
  };
  EXPECT_EQ(gather(1024, 1), gather(8192, 8));
}

// R1's heads and cache rows.
KernelLaunches MlaDecodeOf(int rows, int context, KvFormat format = {}) {
  static bf16 data;
  const MlaDecodeParams p = {.out = Dense(&data, rows, 128 * 512),
                             .q_lat = Dense<const bf16>(&data, rows, 128 * 512),
                             .layer = {.table_stride = 128,
                                       .tokens_per_block = 32,
                                       .latent_dim = 512,
                                       .rope_dim = 64,
                                       .dtype = format.dtype,
                                       .fp8_products = format.fp8_products},
                             .index = {.rows = rows},
                             .head_count = 128};
  return LaunchesOf(p, {.context = context}, H200());
}

TEST(OpLaunches, MlaDecodeTakesAsLongAsItsBusiestBlock) {
  const double tile = 2.0 * 64 * 64 * (576 + 512) / (0.515 * H200().bf16_flops / 132);
  const double split = 64 * (576 * 2 + 512 * 4) / H200().multiprocessor_rate;
  // 66 groups of two blocks, 8 splits a row, of 8 tiles each. With 4 rows a group has one split at most; with
  // 128, a share is 128 x 72 / 66 = 139.6 of the splits' cost of 9, so 16 splits may begin in it.
  const KernelLaunches few = MlaDecodeOf(4, 4096), many = MlaDecodeOf(128, 4096);
  EXPECT_EQ(few[0].items, 4 * 8 * 2);
  EXPECT_NEAR(few[0].chain_seconds, 8 * tile + split, 1e-12);
  EXPECT_EQ(many[0].items, 132);
  EXPECT_NEAR(many[0].chain_seconds, 128 * tile + 16 * split, 1e-12);
  // CombineSplits: a row of four has 8 partial results, a context of one split none.
  EXPECT_DOUBLE_EQ(few[1].memory_bytes, 4 * 8 * 128 * 512 * 4);
  EXPECT_EQ(MlaDecodeOf(4, 512)[1].memory_bytes, 0);
}

// BF16 products over an FP8 cache wait for a group of warps that decodes keys; FP8 products take them as they
// are.
TEST(OpLaunches, MlaDecodeOfFp8ProductsTakesLessTime) {
  const auto seconds = [](KvFormat format) {
    return LaunchSeconds(MlaDecodeOf(128, 4096, format)[0], H200());
  };
  const double products = seconds({DType::kF8E4M3, /*fp8_products_of=*/true});
  EXPECT_EQ(MlaDecodeOf(4, 4096, {DType::kF8E4M3, /*fp8_products_of=*/true})[0].kernel, "MlaDecodeFp8");
  EXPECT_LT(products, seconds(DType::kBF16));
  EXPECT_LT(seconds(DType::kBF16), seconds(DType::kF8E4M3));
}

TEST(OpLaunches, LogitsAreSpreadOverTheDevice) {
  static float logits;
  static int32_t out;
  const auto sample = [](int rows, const CostContext& shape) {
    const SampleParams p = {
        .out = &out, .logits = Dense<const float>(&logits, rows, 129280), .index = {.rows = rows}};
    return LaunchesOf(p, shape, H200());
  };
  const KernelLaunches launches = sample(32, {});
  EXPECT_EQ(launches.size(), 5);
  EXPECT_EQ(launches[0].items, 32 * 16);  // 4 x 132 blocks for 32 rows: two of a row's 32 chunks each
  const double greedy = OpSeconds(launches, H200());
  const double drawn = OpSeconds(sample(32, {.sampled = true}), H200());
  EXPECT_LT(greedy, drawn);
  EXPECT_LT(drawn, OpSeconds(sample(32, {.sampled = true, .filtered = true}), H200()));
  const ArgmaxParams argmax = {&out, Dense<const float>(&logits, 64, 129280)};
  EXPECT_EQ(LaunchesOf(argmax, {}, H200())[0].items, 64 * 16);  // 8 x 132
}

// ---- the device on paper ----

struct Paper {
  PaperDevice device{H200(), /*branches=*/true};
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
  const double both = paper.Seconds([&] {
    paper.device.ops().gemm(paper.stream->Fork(), LongGemm());
    paper.device.ops().gemm(*paper.stream, LongGemm());
    paper.stream->Join();
  });
  EXPECT_GE(both, 2 * CostOf(LongGemm()).bytes / H200().memory_rate);
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

// DeepSeek-V4-Flash's attention: 64 heads of 512, a window of 128 and up to 512 chosen entries of 4 tokens.
TEST(OpLaunches, V4sAttentionTakesAtLeastItsRoofline) {
  const DeviceRates rates = {.bytes_per_second = H200().memory_rate, .bf16_flops = H200().bf16_flops};
  static float floats;
  static bf16 halves;
  static uint8_t bytes;
  static int32_t selected;
  double fewer_rows = 0;
  for (const int rows : {1, 8, 32, 128, 256}) {
    const WindowAttentionParams p = {.out = Dense(&floats, rows, 64 * 512),
                                     .q = Dense<const bf16>(&halves, rows, 64 * 512),
                                     .keys = Dense<const uint8_t>(&bytes, rows, 1024),
                                     .layout = {.latent_dim = 448, .rope_dim = 64},
                                     .selected = &selected,
                                     .index = {.rows = rows},
                                     .selected_count = 512,
                                     .head_count = 64,
                                     .window_len = 128,
                                     .ratio = 4};
    const CostContext shape = {.context = 16384};
    const KernelLaunches launches = LaunchesOf(p, shape, H200());
    ASSERT_EQ(launches.size(), 1);
    const bool wide = rows >= H200().multiprocessors;  // blocks of 64 heads, else of 16
    EXPECT_EQ(launches[0].items, wide ? rows : 4 * rows);
    const double seconds = OpSeconds(launches, H200());
    EXPECT_GE(seconds, RooflineSeconds(CostOf(p, shape), rates)) << rows << " rows";
    if (wide) continue;
    EXPECT_GE(seconds, fewer_rows) << rows << " rows";
    fewer_rows = seconds;
  }
}

TEST(OpLaunches, KeysInF8TakeLongerThanTheirBytes) {
  static float floats;
  static bf16 halves;
  static uint8_t bytes;
  const auto seconds = [](bool fp8) {
    const WindowAttentionParams p = {.out = Dense(&floats, 4, 64 * 512),
                                     .q = Dense<const bf16>(&halves, 4, 64 * 512),
                                     .keys = Dense<const uint8_t>(&bytes, 4, 1024),
                                     .layout = {.latent_dim = 448,
                                                .rope_dim = 64,
                                                .dtype = fp8 ? DType::kF8E4M3 : DType::kBF16,
                                                .group = KvRowLayout::kKeyGroup},
                                     .index = {.rows = 4},
                                     .head_count = 64,
                                     .window_len = 128};
    return OpSeconds(LaunchesOf(p, {.context = 16384}, H200()), H200());
  };
  EXPECT_GT(seconds(true), 1.3 * seconds(false));
}

// Scores nothing while a row sees no more entries than it takes.
TEST(OpLaunches, V4sIndexerTakesAtLeastItsRoofline) {
  const DeviceRates rates = {.bytes_per_second = H200().memory_rate, .bf16_flops = H200().bf16_flops};
  static float floats;
  static bf16 halves;
  for (const int rows : {1, 8, 128}) {
    const SelectEntriesParams p = {.scores = Dense(&floats, rows, 32768),
                                   .q = Dense<const bf16>(&halves, rows, 64 * 128),
                                   .weights = Dense<const float>(&floats, rows, 64),
                                   .entries = {.width = 128},
                                   .index = {.rows = rows},
                                   .head_count = 64,
                                   .ratio = 4,
                                   .top_k = 512};
    double shorter = 0;
    for (const int context : {2048, 16384, 131072}) {
      const CostContext shape = {.context = context};
      const double seconds = OpSeconds(LaunchesOf(p, shape, H200()), H200());
      EXPECT_GE(seconds, RooflineSeconds(CostOf(p, shape), rates)) << rows << " rows, " << context;
      EXPECT_GT(seconds, shorter) << rows << " rows, " << context;
      shorter = seconds;
    }
    EXPECT_EQ(LaunchesOf(p, {.context = 2048}, H200())[0].item_bf16_flops, 0);
  }
}

// The rows of seven other ranks, all parts in one kernel: NCCL's waits for the one before, that of the
// windows is launched ahead of its end, and carries few rows alone.
TEST(PaperCommunicator, AnExchangeTakesItsLatencyAndItsBytes) {
  for (const auto& [windows, rows] : {std::pair{false, 128}, {true, 128}, {true, 160}}) {
    SCOPED_TRACE(absl::StrCat(windows ? "windows, " : "NCCL, ", rows, " rows"));
    PaperDevice device(H200());
    const auto stream = device.CreateStream();
    const auto begin = device.CreateEvent(), end = device.CreateEvent();
    PaperCommunicator others(H200(), 8, windows);
    AllGatherParams params = {.rows = RankRows::Uniform(8, rows)};
    params.parts[0] = {.row_bytes = 7168};
    params.parts[1] = {.row_bytes = 32};
    PaperDevice::TakeKernels();
    begin->Record(*stream);
    others.AllGather(*stream, params);
    end->Record(*stream);
    const double bytes = 7.0 * rows * (7168 + 32);
    const double fixed = windows && rows == 128 ? H200().window_seconds : H200().exchange_seconds;
    EXPECT_NEAR(end->SecondsSince(*begin), H200().edge_seconds + fixed + bytes / H200().link_rate, 1e-9);
    const std::vector<PaperKernel> kernels = PaperDevice::TakeKernels();
    ASSERT_EQ(kernels.size(), 1);
    EXPECT_EQ(kernels[0].kernel, "AllGather");
    EXPECT_EQ(kernels[0].launches, 1);
  }
}

}  // namespace
}  // namespace foredraft
