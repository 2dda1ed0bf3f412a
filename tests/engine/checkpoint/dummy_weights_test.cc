
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/formats/stored_format.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gtest/gtest.h"
#include "kernels/random_weight.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/fake_device.h"
#include "tests/weight_formats.h"

namespace foredraft {
namespace {

// The weights of a layer by name, absent ones included.
std::vector<std::pair<const char*, PackedWeight>> WeightsOf(const V3LayerWeights& layer) {
  const MlaWeights& mla = layer.self_attn;
  const MoeWeights& moe = layer.moe;
  return {{"qkv_a", mla.qkv_a},
          {"q_b", mla.q_b},
          {"kv_b", mla.kv_b},
          {"w_uk", mla.w_uk.first},
          {"w_uv", mla.w_uv.first},
          {"o_proj", mla.o_proj},
          {"mlp.gate_up", layer.mlp.gate_up},
          {"mlp.down", layer.mlp.down},
          {"router", moe.router},
          {"expert_gate_up", moe.expert_gate_up.first},
          {"expert_down", moe.expert_down.first},
          {"shared.gate_up", moe.shared.gate_up},
          {"shared.down", moe.shared.down}};
}

void ExpectSameShapes(const V3LayerWeights& loaded, const V3LayerWeights& made) {
  EXPECT_EQ(made.is_moe, loaded.is_moe);
  EXPECT_EQ(made.moe.expert_down.count, loaded.moe.expert_down.count);
  EXPECT_EQ(made.self_attn.w_uk.count, loaded.self_attn.w_uk.count);
  const auto want = WeightsOf(loaded);
  const auto have = WeightsOf(made);
  for (size_t i = 0; i < want.size(); ++i) {
    EXPECT_EQ(have[i].second.n, want[i].second.n) << want[i].first;
    EXPECT_EQ(have[i].second.k, want[i].second.k) << want[i].first;
    EXPECT_EQ(have[i].second.segments, want[i].second.segments) << want[i].first;
  }
}

V3Weights MakeOrDie(const ModelConfig& config, int modules, FakeDevice& device) {
  FakeStream stream;
  auto weights = As<V3Weights>(MakeDummyWeights(config, modules, device, stream, nullptr));
  EXPECT_TRUE(weights.ok()) << weights.status();
  return *std::move(weights);
}

TEST(DummyWeights, HaveTheShapesOfACheckpoint) {
  ModelConfig config = TinyConfig();
  config.v_head_dim = 16;
  config.intermediate_size = 64;
  config.moe_intermediate_size = 32;
  const std::string dir = MakeTestDir("model");
  WriteSafetensors(dir + "/model.safetensors", TensorsFor(config));
  FakeDevice device;
  FakeStream stream;
  const auto loaded = As<V3Weights>(LoadWeights(dir, config, 2, device, stream, nullptr));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const V3Weights made = MakeOrDie(config, 2, device);
  ASSERT_EQ(made.layers.size(), loaded->layers.size());
  for (size_t i = 0; i < made.layers.size(); ++i) {
    SCOPED_TRACE(i);
    ExpectSameShapes(loaded->layers[i], made.layers[i]);
  }
  EXPECT_EQ(loaded->layers[0].self_attn.o_proj.segments, 2);
  EXPECT_EQ(loaded->layers[0].mlp.down.segments, 4);
  EXPECT_EQ(loaded->layers[0].mlp.gate_up.segments, 0);
  EXPECT_EQ(loaded->layers[1].moe.shared.down.segments, 2);
  EXPECT_EQ(loaded->layers[1].moe.expert_down.first.segments, 0);
  ASSERT_EQ(made.mtp_modules.size(), 2u);
  ExpectSameShapes(loaded->mtp_modules[1].layer, made.mtp_modules[1].layer);
  EXPECT_EQ(made.mtp_modules[1].eh_proj.k, loaded->mtp_modules[1].eh_proj.k);
  EXPECT_EQ(made.lm_head.n, loaded->lm_head.n);
}

TEST(DummyWeights, HeadsAreViewsOfKvB) {
  const ModelConfig config = TinyConfig();
  FakeDevice device;
  const V3Weights made = MakeOrDie(config, 0, device);
  const MlaWeights& mla = made.layers[0].self_attn;
  const int nope = config.qk_nope_head_dim;
  const int value = config.v_head_dim;
  for (int head = 0; head < config.num_attention_heads; ++head) {
    for (int latent = 0; latent < config.kv_lora_rank; ++latent) {
      for (int i = 0; i < nope; ++i) {
        ASSERT_EQ(FakeDevice::At(mla.w_uk.items[head], latent, i),
                  FakeDevice::At(mla.kv_b, head * (nope + value) + i, latent));
      }
      for (int i = 0; i < value; ++i) {
        ASSERT_EQ(FakeDevice::At(mla.w_uv.items[head], i, latent),
                  FakeDevice::At(mla.kv_b, head * (nope + value) + nope + i, latent));
      }
    }
  }
}

TEST(DummyWeights, AreTheSameEveryTimeAndUnlikeEachOther) {
  const ModelConfig config = TinyConfig();
  FakeDevice device;
  const V3Weights a = MakeOrDie(config, 1, device);
  const V3Weights b = MakeOrDie(config, 1, device);
  const PackedWeight down_a = a.mtp_modules[0].layer.moe.expert_down.items[1];
  const PackedWeight down_b = b.mtp_modules[0].layer.moe.expert_down.items[1];
  EXPECT_EQ(FakeDevice::At(down_a, 1, 2), FakeDevice::At(down_b, 1, 2));
  EXPECT_NE(FakeDevice::At(a.mtp_modules[0].layer.moe.expert_down.items[0], 1, 2),
            FakeDevice::At(down_a, 1, 2));
  EXPECT_NE(FakeDevice::At(a.layers[0].self_attn.o_proj, 0, 0),
            FakeDevice::At(a.layers[1].self_attn.o_proj, 0, 0));
}

// Benchmarks of different versions compare tokens, so the seed of a weight is part of its numbers.
TEST(DummyWeights, TheSeedsFollowTheOrderOfTheModel) {
  ModelConfig config = TinyConfig();
  for (const bool tied : {false, true}) {
    config.tie_word_embeddings = tied;
    FakeDevice device;
    const V3Weights made = MakeOrDie(config, 0, device);
    const auto number = [&](uint64_t seed, float amplitude) {
      return ToFloat(RandomBf16(DenseRandomWeight(1, 1, kBf16Format, amplitude, seed), 0));
    };
    const float per_input = 1 / std::sqrt(static_cast<float>(config.hidden_size));
    EXPECT_EQ(ToFloat(made.embed_tokens[0]), number(1, 1));
    EXPECT_EQ(FakeDevice::At(made.lm_head, 0, 0), tied ? number(1, 1) : number(2, 3 * per_input));
    EXPECT_EQ(FakeDevice::At(made.layers[0].self_attn.qkv_a, 0, 0), number(tied ? 2 : 3, per_input));
    EXPECT_EQ(FakeDevice::At(made.layers[0].mlp.gate_up, 0, 0), number(tied ? 6 : 7, per_input));
    EXPECT_EQ(FakeDevice::At(made.layers[1].moe.router, 0, 0), number(tied ? 12 : 13, per_input));
  }
}

TEST(DummyWeights, ARankMakesOnlyItsOwnExperts) {
  const ModelConfig config = TinyConfig();
  FakeDevice device;
  FakeStream stream;
  const MoeWeights all = MakeOrDie(config, 0, device).layers.back().moe;
  const ModelShard shard{.layout = RankLayout::DataParallel(2), .rank = 1};
  const auto weights = As<V3Weights>(MakeDummyWeights(config, 0, device, stream, nullptr, shard));
  ASSERT_TRUE(weights.ok());
  const MoeWeights& here = weights->layers.back().moe;
  ASSERT_EQ(here.expert_down.count, shard.experts().expert_count_here(config.n_routed_experts));
  const int first = shard.experts().first_expert(config.n_routed_experts);
  EXPECT_EQ(FakeDevice::At(here.expert_down.items[0], 1, 2),
            FakeDevice::At(all.expert_down.items[first], 1, 2));
}

// With 8 ranks and 4 experts, rank 0 has none. What every rank holds is the same there too.
TEST(DummyWeights, ARankWithoutExpertsMakesTheSameOtherWeights) {
  const ModelConfig config = TinyConfig();
  FakeDevice device;
  FakeStream stream;
  const MoeWeights all = MakeOrDie(config, 0, device).layers.back().moe;
  const auto weights = As<V3Weights>(
      MakeDummyWeights(config, 0, device, stream, nullptr, {.layout = RankLayout::DataParallel(8)}));
  ASSERT_TRUE(weights.ok());
  const MoeWeights& here = weights->layers.back().moe;
  EXPECT_EQ(here.expert_down.count, 0);
  EXPECT_EQ(FakeDevice::At(here.shared.gate_up, 1, 2), FakeDevice::At(all.shared.gate_up, 1, 2));
}

TEST(RandomWeight, HasTheRequestedAmplitude) {
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3, DType::kInt4, DType::kF4E2M1}) {
    constexpr int kCount = 100000;
    const RandomWeight weight = DenseRandomWeight(1, kCount, FormatOf(dtype), 0.25f, 7);
    double squares = 0;
    double sum = 0;
    for (int i = 0; i < kCount; ++i) {
      const float x = dtype == DType::kBF16 ? ToFloat(RandomBf16(weight, i))
                                            : CodeToFloat(dtype, RandomCode(weight, i)) * RandomScale(weight);
      ASSERT_TRUE(std::isfinite(x));
      squares += double{x} * x;
      sum += x;
    }
    // 2^-4 is the largest power of two whose codes, of root mean square 2.926, do not exceed the amplitude.
    const double expected = dtype == DType::kF4E2M1 ? 2.926 / 16 : 0.25;
    EXPECT_NEAR(std::sqrt(squares / kCount), expected, 0.002) << DTypeName(dtype);
    EXPECT_NEAR(sum / kCount, 0, 0.004) << DTypeName(dtype);
  }
}

TEST(DummyWeights, Are4BitsWhereQuantizeMakesThem) {
  ModelConfig config = TinyConfig();
  config.hidden_size = 64;
  config.moe_intermediate_size = 40;  // the columns of down: no multiple of 32
  for (const WeightFormat& format : {kInt4Format, kMxfp4Format}) {
    config.projections = format;
    FakeDevice device;
    const V3Weights weights = MakeOrDie(config, 2, device);
    // Codes times a scale that is the same everywhere: few different values.
    const PackedWeight& gate_up = weights.mtp_modules[0].layer.moe.expert_gate_up.first;
    std::set<float> values;
    for (int column = 0; column < 64; ++column) values.insert(FakeDevice::At(gate_up, 3, column));
    EXPECT_LE(values.size(), 16u);
    const ModelDescription description = DescribeModel(config, 2);
    const FormatChoice choice(description);
    std::map<std::string, bool> packed;
    for (const WeightSpec& weight : description.weights) packed[weight.name] = choice.Quantises(weight);
    for (const char* name : {"qkv_a", "experts.gate_up", "shared.gate_up", "mlp.gate_up"}) {
      EXPECT_TRUE(packed[name]) << name;
    }
    for (const char* name : {"kv_b", "experts.down", "router", "eh_proj", "lm_head", "embed_tokens", "q_b"}) {
      EXPECT_FALSE(packed[name]) << name;
    }
    ModelConfig plain = config;
    plain.projections = kBf16Format;
    EXPECT_LT(DummyBytes(config, 2), DummyBytes(plain, 2));
  }
}

// All experts have one input scale; a rank without experts has it, too.
TEST(DummyWeights, OfExpertsInNvfp4HaveInputScalesWhereInputsAreRounded) {
  ModelConfig config = TinyConfig();
  config.projections = kNvfp4Format;
  config.hidden_size = 64;
  config.moe_intermediate_size = 32;
  FakeDevice plain_device, device;
  const V3Weights plain = MakeOrDie(config, 1, plain_device);
  EXPECT_FALSE(plain.layers[1].moe.gate_up_inputs);
  config.nvfp4_inputs = true;
  const V3Weights weights = MakeOrDie(config, 1, device);
  const MoeWeights& moe = weights.layers[1].moe;
  for (const InputScales& inputs : {moe.gate_up_inputs, moe.down_inputs}) {
    ASSERT_TRUE(inputs);
    EXPECT_TRUE(inputs.alike);
    for (int expert = 0; expert < 4; ++expert) EXPECT_EQ(inputs.values[expert], kRandomInputScale);
  }
  EXPECT_FALSE(weights.mtp_modules[0].layer.moe.gate_up_inputs) << "experts in BF16";
  for (int column = 0; column < 32; ++column) {
    ASSERT_EQ(FakeDevice::At(moe.expert_down.items[2], 3, column),
              FakeDevice::At(plain.layers[1].moe.expert_down.items[2], 3, column) * kRandomInputScale);
  }
  FakeStream stream;
  for (const int rank : {0, 7}) {  // of eight, with four experts
    const auto part = As<V3Weights>(MakeDummyWeights(config, 0, device, stream, nullptr,
                                                     {.layout = RankLayout::DataParallel(8), .rank = rank}));
    ASSERT_TRUE(part.ok()) << part.status();
    EXPECT_EQ(part->layers[1].moe.expert_down.count, rank == 0 ? 0 : 1);
    EXPECT_TRUE(part->layers[1].moe.gate_up_inputs.alike) << "rank " << rank;
    EXPECT_EQ(part->layers[1].moe.gate_up_inputs.values[0], kRandomInputScale);
  }
}

TEST(DummyWeights, CountTheirBytesAndTheirProgress) {
  ModelConfig config = TinyConfig();
  const CheckpointSummary bf16_summary = SummarizeConfig(config);
  EXPECT_EQ(bf16_summary.bytes, 2 * (bf16_summary.parameters + bf16_summary.mtp_parameters));
  config.projections = kFp8Format;
  EXPECT_LT(SummarizeConfig(config).bytes, bf16_summary.bytes);
  FakeDevice device;
  FakeStream stream;
  int64_t last_done = 0;
  int64_t last_total = 0;
  const auto weights = MakeDummyWeights(config, 2, device, stream, [&](int64_t done, int64_t total) {
    EXPECT_GT(done, last_done);
    last_done = done;
    last_total = total;
  });
  ASSERT_TRUE(weights.ok());
  EXPECT_EQ(last_done, last_total);
  EXPECT_EQ(last_total, DummyBytes(config, 2));
}

// The projections whose outputs are added to the residual stream, and no others.
TEST(DummyWeights, WhatRanksCutAlongItsInputsHasSegments) {
  const std::map<std::string, std::map<std::string, int>> expected = {
      {"r1-shape-small.json", {{"o_proj", 8}, {"mlp.down", 8}, {"shared.down", 8}}},
      {"glm-4.7-flash.json", {{"o_proj", 8}, {"mlp.down", 8}, {"shared.down", 4}}},
      {"yardstick.json", {{"o_proj", 8}, {"mlp.down", 8}, {"shared.down", 8}}},
      {"v4-flash-shape.json", {{"attn.wo_b", 8}, {"shared.down", 8}}},
  };
  for (const auto& [file, segments] : expected) {
    const auto config = ReadModelConfig("deploy/configs/" + file);
    ASSERT_TRUE(config.ok()) << config.status();
    const ModelDescription description = DescribeModel(*config, 1);
    std::map<std::string, int> found;
    for (const WeightSpec& weight : description.weights) {
      if (weight.segments != 0) found[weight.name] = weight.segments;
    }
    EXPECT_EQ(found, segments) << file;
  }
}

// One GPU of 141 GB has room for either, and for a cache.
TEST(DummyWeights, OfR1sShapesFitOneGpu) {
  for (const auto& [file, gigabytes] : {std::pair("deploy/configs/r1-shape-61x32.json", 102.4),
                                        std::pair("deploy/configs/r1-shape-small.json", 51.4)}) {
    const auto config = ReadModelConfig(file);
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_NEAR(static_cast<double>(SummarizeConfig(*config).bytes) / 1e9, gigabytes, 0.5) << file;
  }
}

// 24 GiB are 25.8 GB.
TEST(DummyWeights, OfGlmInInt4LeaveRoomOnAMachineOf24Gib) {
  const auto config = ReadModelConfig("deploy/configs/glm-4.7-flash.json");
  ASSERT_TRUE(config.ok()) << config.status();
  const CheckpointSummary summary = SummarizeConfig(*config);
  EXPECT_NEAR(static_cast<double>(summary.parameters) / 1e9, 29.94, 0.05);
  EXPECT_NEAR(static_cast<double>(summary.bytes) / 1e9, 18.46, 0.05);
}

}  // namespace
}  // namespace foredraft
