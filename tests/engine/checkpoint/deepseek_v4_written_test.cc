// DeepSeek-V4 weights that this program makes: on the device (load_format dummy), by synth, by quantize.

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <string>

#include "engine/kinds/checkpoint_summary.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/deepseek_v4_comparison.h"
#include "tests/engine/checkpoint/fake_device.h"
#include "tests/weight_formats.h"
#include "tools/quantize/quantize_checkpoint.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

std::unique_ptr<Loaded> MakeDummy(const ModelConfig& config, const ModelShard& shard = {}) {
  auto made = std::make_unique<Loaded>();
  auto weights = As<V4Weights>(MakeDummyWeights(config, 1, made->device, made->stream, nullptr, shard));
  EXPECT_TRUE(weights.ok()) << weights.status();
  made->weights = *std::move(weights);
  return made;
}

TEST(DeepseekV4Dummy, HasExpertsOfItsRankAndWholeTables) {
  const ModelConfig config = ConfigOf(GoldenDir("deepseek_v4_fp4"));
  const auto all = MakeDummy(config);
  const auto part = MakeDummy(config, {.layout = RankLayout::DataParallel(2), .rank = 1});
  const MoeWeights &whole = all->weights.layers[2].ffn, &half = part->weights.layers[2].ffn;
  ASSERT_EQ(half.expert_down.count, config.n_routed_experts / 2);
  EXPECT_EQ(FakeDevice::At(half.expert_down.items[0], 1, 2),
            FakeDevice::At(whole.expert_down.items[config.n_routed_experts / 2], 1, 2));
  EXPECT_EQ(FakeDevice::At(half.shared.down, 1, 2), FakeDevice::At(whole.shared.down, 1, 2));
  EXPECT_EQ(part->weights.layers[1].hc_ffn.fn[7], all->weights.layers[1].hc_ffn.fn[7]);
  EXPECT_NE(all->weights.layers[1].hc_ffn.fn[7], 0);
  EXPECT_EQ(all->weights.layers[1].hc_ffn.scale[2], 1);
  const int top_k = config.num_experts_per_tok;
  for (int token = 0; token < config.vocab_size; ++token) {
    const int32_t* const row = all->weights.layers[0].ffn.expert_table + token * top_k;
    EXPECT_EQ(std::set<int32_t>(row, row + top_k).size(), static_cast<size_t>(top_k)) << token;
    EXPECT_LT(*std::max_element(row, row + top_k), config.n_routed_experts);
    EXPECT_GE(*std::min_element(row, row + top_k), 0);
  }
}

class DeepseekV4Synth : public ::testing::TestWithParam<DType> {};

TEST_P(DeepseekV4Synth, WritesACheckpointThatLoads) {
  const std::string dir = MakeTestDir("synth") + "/out";
  const std::string shape = GoldenDir("deepseek_v4_fp4") + "/config.json";
  const auto written = WriteRandomCheckpoint(
      {.config_json = shape, .out_dir = dir, .seed = 5, .projections = FileFormatOf(GetParam())});
  ASSERT_TRUE(written.ok()) << written.status();
  const ModelConfig config = ConfigOf(dir);
  EXPECT_EQ(IsF8(config.projections), GetParam() == DType::kF8E4M3 || GetParam() == DType::kF4E2M1);
  EXPECT_EQ(config.experts.has_value(), GetParam() == DType::kF4E2M1);
  const auto loaded = Load(dir);
  ASSERT_EQ(loaded->weights.modules.size(), 1u);
  const MoeWeights& moe = loaded->weights.layers[2].ffn;
  EXPECT_EQ(moe.expert_down.first.format.code, GetParam());
  if (GetParam() != DType::kInt4) Comparison(config, dir).Model(loaded->weights);
  // Projections preserve the scale of their inputs.
  const PackedWeight& down = moe.expert_down.first;
  double squares = 0;
  for (int row = 0; row < down.n; ++row) {
    for (int column = 0; column < down.k; ++column) squares += std::pow(FakeDevice::At(down, row, column), 2);
  }
  EXPECT_NEAR(squares / down.n, 1.0 / (2 * config.num_hidden_layers), 0.03);
  const auto summary = SummarizeCheckpoint(dir);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const int64_t shapes = summary->dtype_bytes.at("I64") - 64 * 3 * 2 * 8;  // INT4's weight_shape tensors
  EXPECT_EQ(summary->bytes - shapes, DummyBytes(config, 1)) << "norms are BF16 in both";
}

INSTANTIATE_TEST_SUITE_P(DTypes, DeepseekV4Synth,
                         ::testing::Values(DType::kBF16, DType::kF8E4M3, DType::kInt4, DType::kF4E2M1),
                         [](const auto& info) { return DTypeName(info.param); });

// ---- quantize ----

class DeepseekV4Quantize : public ::testing::TestWithParam<DType> {};

TEST_P(DeepseekV4Quantize, KeepsTheModel) {
  const std::string in = GoldenDir("deepseek_v4"), out = MakeTestDir("quantized") + "/out";
  const auto report = QuantizeCheckpoint(
      {.in_dir = in, .out_dir = out, .format = FileFormatOf(GetParam()), .threads = 2}, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  const ModelConfig config = ConfigOf(out);
  const bool f8 = GetParam() == DType::kF8E4M3;
  EXPECT_EQ(IsF8(config.projections), f8);
  EXPECT_FALSE(config.experts);
  const auto before = Load(in), after = Load(out);
  ASSERT_EQ(after->weights.modules.size(), 1u);
  const auto error = [](const PackedWeight& a, const PackedWeight& b) {
    double squares = 0, errors = 0;
    for (int row = 0; row < a.n; ++row) {
      for (int column = 0; column < a.k; ++column) {
        squares += std::pow(FakeDevice::At(a, row, column), 2);
        errors += std::pow(FakeDevice::At(a, row, column) - FakeDevice::At(b, row, column), 2);
      }
    }
    return std::sqrt(errors / squares);
  };
  for (size_t i = 0; i < before->weights.layers.size(); ++i) {
    const V4LayerWeights &a = before->weights.layers[i], &b = after->weights.layers[i];
    EXPECT_EQ(b.attn.wq_b.format.code, GetParam());
    EXPECT_EQ(b.ffn.expert_down.first.format.code, GetParam());
    EXPECT_EQ(b.ffn.router.format.code, DType::kBF16);
    // Three mantissa bits: half a step of a value is 2^-4 of it at most, and a third of its square on
    // average.
    EXPECT_LT(error(a.attn.wq_b, b.attn.wq_b), f8 ? 0.0625 : 0.15);
    EXPECT_LT(error(a.ffn.expert_down.first, b.ffn.expert_down.first), f8 ? 0.0625 : 0.15);
    EXPECT_EQ(error(a.ffn.router, b.ffn.router), 0);
    EXPECT_GT(error(a.attn.wq_b, b.attn.wq_b), 0);
    for (int j = 0; j < 3; ++j) EXPECT_EQ(a.hc_attn.scale[j], b.hc_attn.scale[j]);
  }
  if (f8) Comparison(config, out).Model(after->weights);
}

INSTANTIATE_TEST_SUITE_P(DTypes, DeepseekV4Quantize, ::testing::Values(DType::kF8E4M3, DType::kInt4),
                         [](const auto& info) { return DTypeName(info.param); });

}  // namespace
}  // namespace foredraft
