#include "tests/bench/op_cost.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "tests/bench/counting_device.h"
#include "tests/weight_formats.h"

namespace foredraft {
namespace {

PackedWeight WeightOf(int n, int k, DType dtype) {
  static const char data = 0;
  return {.data = &data, .n = n, .k = k, .format = FormatOf(dtype)};
}

template <class T>
Matrix<T> Shape(int rows, int cols) {
  static std::remove_const_t<T> element;
  return Dense<T>(&element, rows, cols);
}

TEST(OpCost, WeightsAreCountedOnceWithTheirScales) {
  EXPECT_EQ(WeightBytes(WeightOf(256, 7168, DType::kBF16)), 256 * 7168 * 2);
  EXPECT_EQ(WeightBytes(WeightOf(2112, 7168, DType::kF8E4M3)), 2112 * 7168 + 17 * 56 * 4);
}

TEST(OpCost, OfAGemm) {
  const GemmParams p = {.out = Shape<float>(32, 24576),
                        .x = Shape<const bf16>(32, 1536),
                        .weight = WeightOf(24576, 1536, DType::kF8E4M3)};
  const OpCost cost = CostOf(p);
  EXPECT_EQ(cost.bytes, 24576.0 * 1536 + 192 * 12 * 4 + 32 * 24576 * 4 + 32 * 1536 * 2);
  EXPECT_EQ(cost.fp8_flops, 2.0 * 32 * 24576 * 1536);
  EXPECT_EQ(cost.bf16_flops, 0);
}

TEST(OpCost, OfAttentionReadsASequencesKeysOnce) {
  MlaDecodeParams p = {.out = Shape<bf16>(8, 128 * 512),
                       .q_lat = Shape<const bf16>(8, 128 * 512),
                       .layer = {.latent_dim = 512, .rope_dim = 64},
                       .index = {.rows = 8},
                       .head_count = 128};
  const OpCost alone = CostOf(p, {.context = 4096, .rows_per_sequence = 1});
  const OpCost together = CostOf(p, {.context = 4096, .rows_per_sequence = 4});
  EXPECT_EQ(alone.bytes - together.bytes, 6.0 * 4096 * 576 * 2);
  EXPECT_EQ(alone.bf16_flops, 8.0 * 128 * 4096 * 1088 * 2);
  EXPECT_EQ(together.bf16_flops, alone.bf16_flops);
  p.layer.fp8_products = true;  // all but the RoPE part
  const OpCost of_codes = CostOf(p, {.context = 4096, .rows_per_sequence = 1});
  EXPECT_EQ(of_codes.fp8_flops, 8.0 * 128 * 4096 * 1024 * 2);
  EXPECT_EQ(of_codes.bf16_flops, 8.0 * 128 * 4096 * 64 * 2);
}

// DeepSeek-V4-Flash: 64 heads of 512, a window of 128, up to 512 chosen entries of 4 tokens each.
TEST(OpCost, OfV4sAttentionReadsTheWindowAndItsEntries) {
  const int32_t selected = 0;
  WindowAttentionParams p = {.out = Shape<float>(2, 64 * 512),
                             .q = Shape<const bf16>(2, 64 * 512),
                             .keys = Shape<const uint8_t>(2, 1024),
                             .layout = {.latent_dim = 448, .rope_dim = 64},
                             .selected = &selected,
                             .index = {.rows = 2},
                             .selected_count = 512,
                             .head_count = 64,
                             .window_len = 128,
                             .ratio = 4};
  EXPECT_EQ(CostOf(p, {.context = 100}).stored_bytes, 2.0 * (100 + 25) * 512 * 2);
  EXPECT_EQ(CostOf(p, {.context = 65536}).stored_bytes, 2.0 * (128 + 512) * 512 * 2);
  EXPECT_EQ(CostOf(p, {.context = 65536, .rows_per_sequence = 2}).stored_bytes, (128 + 512) * 512.0 * 2);
  p.layout.dtype = DType::kF8E4M3;
  p.layout.group = KvRowLayout::kKeyGroup;
  EXPECT_EQ(CostOf(p, {.context = 65536}).stored_bytes, 2.0 * (128 + 512) * 608);
  p.selected = nullptr;
  p.ratio = 128;
  EXPECT_EQ(CostOf(p, {.context = 65536}).bf16_flops, 4.0 * 2 * 64 * (128 + 512) * 512);
  const SelectEntriesParams select = {.q = Shape<const bf16>(1, 64 * 128),
                                      .entries = {.width = 128},
                                      .index = {.rows = 1},
                                      .head_count = 64,
                                      .ratio = 4,
                                      .top_k = 512};
  EXPECT_EQ(CostOf(select, {.context = 2048}).stored_bytes, 0) << "all are attended";
  EXPECT_EQ(CostOf(select, {.context = 8192}).stored_bytes, 2048 * 128 * 2);
}

TEST(OpCost, OfHyperConnectionsReadsTheirWeights) {
  const HyperPreParams p = {
      .out = Shape<float>(3, 4096), .mix = Shape<float>(3, 24), .streams = Shape<const float>(3, 4 * 4096)};
  EXPECT_EQ(CostOf(p).stored_bytes, 24 * 16384 * 4);
}

TEST(OpCost, CountsTheExpertsWithRowsWhereOffsetsAreReadable) {
  const int32_t offsets[] = {0, 3, 3, 3, 8};  // experts 0 and 3 have rows
  const GroupedGemmParams p = {.out = Shape<float>(8, 256),
                               .x = Shape<const bf16>(8, 128),
                               .expert_offsets = offsets,
                               .experts = {.count = 4, .first = WeightOf(256, 128, DType::kBF16)}};
  EXPECT_EQ(CostOf(p, {.host_arrays = true}).stored_bytes, 2 * 256 * 128 * 2);
  EXPECT_GT(CostOf(p).stored_bytes, 3 * 256 * 128 * 2);
}

TEST(OpCost, StoredBytesAreWeightsAndKeysOnly) {
  const GemmParams gemm = {.out = Shape<float>(32, 64),
                           .x = Shape<const bf16>(32, 128),
                           .weight = WeightOf(64, 128, DType::kBF16)};
  EXPECT_EQ(CostOf(gemm).stored_bytes, 64 * 128 * 2);
  const MlaDecodeParams attention = {.out = Shape<bf16>(4, 512),
                                     .q_lat = Shape<const bf16>(4, 512),
                                     .layer = {.latent_dim = 512, .rope_dim = 64},
                                     .index = {.rows = 4},
                                     .head_count = 1};
  EXPECT_EQ(CostOf(attention, {.context = 100, .rows_per_sequence = 4}).stored_bytes, 100 * 576 * 2);
  EXPECT_EQ(CostOf(AddParams{.out = Shape<float>(4, 512), .x = Shape<const float>(4, 512)}).stored_bytes, 0);
}

TEST(OpCost, EstimatesTheExpertsWithRows) {
  EXPECT_DOUBLE_EQ(ExpectedExperts(1, 256), 1);
  EXPECT_NEAR(ExpectedExperts(8, 256), 7.89, 0.01);
  EXPECT_NEAR(ExpectedExperts(1024, 256), 251.3, 0.1);
  const GroupedGemmParams p = {.out = Shape<float>(8, 4096),
                               .x = Shape<const bf16>(1, 7168),
                               .experts = {.count = 1, .first = WeightOf(4096, 7168, DType::kF8E4M3)}};
  EXPECT_EQ(CostOf(p).bytes, 8.0 * 4096 * 4 + 7168 * 2 + 4096.0 * 7168 + 32 * 56 * 4);
}

TEST(OpCost, CountsOnlyTheOwnRanksPairs) {
  const GroupedGemmParams p = {.out = Shape<float>(64, 256),
                               .x = Shape<const bf16>(64, 128),
                               .experts = {.count = 4, .first = WeightOf(256, 128, DType::kBF16)}};
  const CostContext shape = {.expert_ranks = 8, .met_experts = 3};
  EXPECT_EQ(CostOf(p, shape).bytes, 3.0 * 256 * 128 * 2 + 8 * 256 * 4 + 8 * 128 * 2);
  EXPECT_EQ(CostOf(p, shape).bf16_flops, 2.0 * 8 * 256 * 128);
  const ExpertPartialsParams partials = {
      .out = Shape<float>(16, 128), .expert_out = Shape<const float>(8192, 128), .top_k = 4};
  EXPECT_EQ(CostOf(partials, shape).bytes, 16 * 128 * 4 + 16 * 4 * 128 * 4 / 8);
}

TEST(OpCost, RooflineIsTheSlowerOfMemoryAndMatrixUnits) {
  const DeviceRates rates = {.bytes_per_second = 4e12, .bf16_flops = 8e14, .fp8_flops = 16e14};
  EXPECT_DOUBLE_EQ(RooflineSeconds({.bytes = 4e9, .bf16_flops = 8e10}, rates), 1e-3);
  EXPECT_DOUBLE_EQ(RooflineSeconds({.bytes = 4e9, .bf16_flops = 8e11, .fp8_flops = 16e11}, rates), 2e-3);
}

TEST(CountingDevice, CountsAndRunsSubmittedAndReplayedOps) {
  CountingDevice device(*CreateDevice("cpu", {}));
  float* const x = *device.AllocateArray<float>(2 * 16);
  float* const out = *device.AllocateArray<float>(2 * 16);
  const auto stream = device.CreateStream();
  const std::vector<float> ones(32, 1.0f);
  device.CopyToDevice(*stream, x, ones.data(), ones.size() * sizeof(float));
  const AddParams p = {Dense(out, 2, 16), Dense<const float>(x, 2, 16)};
  const auto graph = device.Capture(*stream, [&] { device.ops().add(*stream, p); });
  device.ops().add(*stream, p);
  graph->Replay(*stream);
  EXPECT_EQ(device.TakeCost().bytes, 0) << "counting has not started";
  device.StartCounting({});
  device.ops().add(*stream, p);
  graph->Replay(*stream);
  const OpTallies tallies = device.TakeTallies();
  EXPECT_EQ(tallies[static_cast<int>(OpKind::kSmall)].calls, 2);
  EXPECT_EQ(tallies[static_cast<int>(OpKind::kSmall)].cost.bytes, 2 * 3 * 32 * sizeof(float));
  stream->Synchronize();
  std::vector<float> values(32);
  device.CopyToHost(*stream, values.data(), out, values.size() * sizeof(float));
  stream->Synchronize();
  EXPECT_EQ(values, std::vector<float>(32, 4.0f));
}

TEST(CountingDevice, RecognisesTheHeadByItsWidth) {
  CountingDevice device(*CreateDevice("cpu", {}));
  const auto stream = device.CreateStream();
  const auto weight = device.MakeRandomWeights(1, DenseRandomWeight(64, 32, kBf16Format, 1.0f, 1));
  const GemmParams p = {.out = Dense(*device.AllocateArray<float>(64), 1, 64),
                        .x = Dense<const bf16>(*device.AllocateArray<bf16>(32), 1, 32),
                        .weight = weight->first};
  device.StartCounting({}, 64);
  device.ops().gemm(*stream, p);
  EXPECT_EQ(device.TakeTallies()[static_cast<int>(OpKind::kHead)].calls, 1);
  device.StartCounting({}, 63);
  device.ops().gemm(*stream, p);
  EXPECT_EQ(device.TakeTallies()[static_cast<int>(OpKind::kGemm)].calls, 1);
}

// Ops run one after another: what one kind reads does not hide what another computes.
TEST(OpCost, BoundOfAStepIsTheSumOfItsKinds) {
  OpTallies tallies;
  tallies[static_cast<int>(OpKind::kGemm)].cost = {.bytes = 999, .stored_bytes = 40, .bf16_flops = 10};
  tallies[static_cast<int>(OpKind::kAttention)].cost = {.bytes = 999, .stored_bytes = 2, .bf16_flops = 300};
  tallies[static_cast<int>(OpKind::kSmall)].cost = {.bytes = 999};  // activations stay in caches
  const DeviceRates rates = {.bytes_per_second = 4, .bf16_flops = 100, .fp8_flops = 100};
  EXPECT_DOUBLE_EQ(BoundSeconds(tallies, rates), 10.0 + 3.0);
}

}  // namespace
}  // namespace foredraft
