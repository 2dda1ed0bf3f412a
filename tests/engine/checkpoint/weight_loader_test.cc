
#include <cstring>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/fake_device.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

float Rounded(float x) { return ToFloat(ToBf16(x)); }

// Loads the tensors into a fake device; keeps both alive for the test.
class WeightLoaderTest : public ::testing::Test {
 protected:
  absl::StatusOr<V3Weights> Load(int mtp_module_count, const LoadProgress& progress = nullptr,
                                 const ModelShard& shard = {}) {
    const std::string dir = MakeTestDir("model");
    WriteSafetensors(dir + "/model.safetensors", tensors_);
    return As<V3Weights>(LoadWeights(dir, config_, mtp_module_count, device_, stream_, progress, shard));
  }

  V3Weights LoadOrDie(int mtp_module_count) {
    absl::StatusOr<V3Weights> weights = Load(mtp_module_count);
    EXPECT_TRUE(weights.ok()) << weights.status();
    return weights.ok() ? *weights : V3Weights{};
  }

  // The value TensorsFor gave element [row, column] of a tensor.
  float Expected(const std::string& name, int64_t row, int64_t column) {
    const RawTensor& tensor = Named(tensors_, name);
    const int64_t width = tensor.shape.back();
    return TestValue(&tensor - tensors_.data(), row * width + column);
  }

  // Rows [first, first + rows of `name`) of `weight` are that tensor, rounded to BF16.
  void ExpectRows(const PackedWeight& weight, int32_t first, const std::string& name) {
    const RawTensor& tensor = Named(tensors_, name);
    ASSERT_TRUE(weight) << name;
    ASSERT_EQ(weight.k, tensor.shape[1]) << name;
    ASSERT_LE(first + tensor.shape[0], weight.n) << name;
    for (int32_t row = 0; row < tensor.shape[0]; ++row)
      for (int32_t column = 0; column < weight.k; ++column)
        ASSERT_EQ(FakeDevice::At(weight, first + row, column), Rounded(Expected(name, row, column)))
            << name << " [" << row << ", " << column << "]";
  }

  void ExpectVector(const float* vector, const std::string& name) {
    ASSERT_NE(vector, nullptr) << name;
    for (int64_t i = 0; i < Named(tensors_, name).shape[0]; ++i)
      ASSERT_EQ(vector[i], Expected(name, 0, i)) << name << " [" << i << "]";
  }

  // Replaces a tensor by FP8 codes 0x38 (1.0) + column, with these block scales.
  void MakeF8(const std::string& name, const std::vector<float>& scales) {
    RawTensor& tensor = Named(tensors_, name);
    tensor.dtype = "F8_E4M3";
    tensor.bytes.assign(tensor.bytes.size() / 4, '\0');
    for (size_t i = 0; i < tensor.bytes.size(); ++i)
      tensor.bytes[i] = static_cast<char>(0x38 + i % tensor.shape[1] % 8);
    RawTensor scale{name + "_scale_inv", "F32", ScaleShape(kFp8Format, tensor.shape),
                    std::string(scales.size() * 4, '\0')};
    std::memcpy(scale.bytes.data(), scales.data(), scale.bytes.size());
    tensors_.push_back(scale);
  }

  // A tied head equals the embedding where it is stored.
  void TieHead(bool tied) {
    config_.tie_word_embeddings = tied;
    Named(tensors_, "lm_head.weight").bytes = Named(tensors_, "model.embed_tokens.weight").bytes;
  }

  ModelConfig config_ = TinyConfig();
  std::vector<RawTensor> tensors_ = TensorsFor(config_);
  FakeDevice device_;
  FakeStream stream_;
};

TEST_F(WeightLoaderTest, FusesAndStoresEveryTensor) {
  const V3Weights weights = LoadOrDie(2);
  for (int row = 0; row < 12; ++row)
    for (int column = 0; column < 8; ++column)
      ASSERT_EQ(ToFloat(weights.embed_tokens[row * 8 + column]),
                Rounded(Expected("model.embed_tokens.weight", row, column)));
  ExpectVector(weights.norm, "model.norm.weight");
  ExpectRows(weights.lm_head, 0, "lm_head.weight");
  ASSERT_EQ(weights.layers.size(), 2u);

  const MlaWeights& mla = weights.layers[0].self_attn;
  ExpectRows(mla.qkv_a, 0, "model.layers.0.self_attn.q_a_proj.weight");
  ExpectRows(mla.qkv_a, 4, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_EQ(mla.qkv_a.n, 4 + 6 + 2);
  EXPECT_EQ(mla.qkv_a_bias, nullptr);
  ExpectVector(mla.q_a_layernorm, "model.layers.0.self_attn.q_a_layernorm.weight");
  ExpectVector(mla.kv_a_layernorm, "model.layers.0.self_attn.kv_a_layernorm.weight");
  ExpectRows(mla.q_b, 0, "model.layers.0.self_attn.q_b_proj.weight");
  ExpectRows(mla.kv_b, 0, "model.layers.0.self_attn.kv_b_proj.weight");
  ExpectRows(mla.o_proj, 0, "model.layers.0.self_attn.o_proj.weight");

  EXPECT_FALSE(weights.layers[0].is_moe);
  ExpectVector(weights.layers[0].input_layernorm, "model.layers.0.input_layernorm.weight");
  ExpectVector(weights.layers[0].post_attention_layernorm, "model.layers.0.post_attention_layernorm.weight");
  ExpectRows(weights.layers[0].mlp.gate_up, 0, "model.layers.0.mlp.gate_proj.weight");
  ExpectRows(weights.layers[0].mlp.gate_up, 10, "model.layers.0.mlp.up_proj.weight");
  ExpectRows(weights.layers[0].mlp.down, 0, "model.layers.0.mlp.down_proj.weight");

  EXPECT_TRUE(weights.layers[1].is_moe);
  const MoeWeights& moe = weights.layers[1].moe;
  ExpectRows(moe.router, 0, "model.layers.1.mlp.gate.weight");
  ExpectVector(moe.bias, "model.layers.1.mlp.gate.e_score_correction_bias");
  for (int expert = 0; expert < 4; ++expert) {
    const std::string prefix = absl::StrCat("model.layers.1.mlp.experts.", expert, ".");
    ExpectRows(moe.expert_gate_up.items[expert], 0, prefix + "gate_proj.weight");
    ExpectRows(moe.expert_gate_up.items[expert], 6, prefix + "up_proj.weight");
    ExpectRows(moe.expert_down.items[expert], 0, prefix + "down_proj.weight");
  }
  ExpectRows(moe.shared.gate_up, 6, "model.layers.1.mlp.shared_experts.up_proj.weight");
  ExpectRows(moe.shared.down, 0, "model.layers.1.mlp.shared_experts.down_proj.weight");

  ASSERT_EQ(weights.mtp_modules.size(), 2u);
  const V3ModuleWeights& module = weights.mtp_modules[1];
  ExpectVector(module.enorm, "model.layers.3.enorm.weight");
  ExpectVector(module.hnorm, "model.layers.3.hnorm.weight");
  ExpectRows(module.eh_proj, 0, "model.layers.3.eh_proj.weight");
  ExpectVector(module.shared_head_norm, "model.layers.3.shared_head.norm.weight");
  EXPECT_TRUE(module.layer.is_moe);
  ExpectRows(module.layer.self_attn.o_proj, 0, "model.layers.3.self_attn.o_proj.weight");
}

TEST_F(WeightLoaderTest, SplitsKvBPerHead) {
  const V3Weights weights = LoadOrDie(0);
  const std::string name = "model.layers.1.self_attn.kv_b_proj.weight";
  const MlaWeights& mla = weights.layers[1].self_attn;
  for (int head = 0; head < 2; ++head) {
    const int first = head * (4 + 3);
    ASSERT_EQ(mla.w_uk.items[head].n, 6);
    ASSERT_EQ(mla.w_uk.items[head].k, 4);
    ASSERT_EQ(mla.w_uv.items[head].n, 3);
    ASSERT_EQ(mla.w_uv.items[head].k, 6);
    for (int latent = 0; latent < 6; ++latent) {
      for (int nope = 0; nope < 4; ++nope)
        EXPECT_EQ(FakeDevice::At(mla.w_uk.items[head], latent, nope),
                  Rounded(Expected(name, first + nope, latent)));
      for (int v = 0; v < 3; ++v)
        EXPECT_EQ(FakeDevice::At(mla.w_uv.items[head], v, latent),
                  Rounded(Expected(name, first + 4 + v, latent)));
    }
  }
}

TEST_F(WeightLoaderTest, DequantisesKvBOnceForBothForms) {
  config_.projections = kFp8Format;
  MakeF8("model.layers.0.self_attn.kv_b_proj.weight", {0.3f});
  const MlaWeights mla = LoadOrDie(0).layers[0].self_attn;
  EXPECT_EQ(mla.kv_b.format.code, DType::kBF16);
  const float value = Rounded(F8E4M3ToFloat(0x38 + 5) * 0.3f);
  EXPECT_EQ(FakeDevice::At(mla.kv_b, 9, 5), value);
  EXPECT_EQ(FakeDevice::At(mla.w_uk.items[1], 5, 2), value);  // row 7 + 2 of kv_b, transposed
  EXPECT_EQ(FakeDevice::At(mla.w_uv.items[0], 2, 5), value);
}

TEST_F(WeightLoaderTest, KeepsFP8WhereAllPartsHaveIt) {
  config_.projections = kFp8Format;
  config_.hidden_size = 200;  // two ragged blocks
  tensors_ = TensorsFor(config_);
  MakeF8("model.layers.0.mlp.gate_proj.weight", {0.5f, 2.0f});
  MakeF8("model.layers.0.mlp.up_proj.weight", {4.0f, 8.0f});
  const PackedWeight gate_up = LoadOrDie(0).layers[0].mlp.gate_up;
  EXPECT_EQ(gate_up.format.code, DType::kF8E4M3);
  EXPECT_EQ(FakeDevice::At(gate_up, 0, 0), 0.5f);
  EXPECT_EQ(FakeDevice::At(gate_up, 9, 128), 2.0f);
  EXPECT_EQ(FakeDevice::At(gate_up, 10, 0), 4.0f);
  EXPECT_EQ(FakeDevice::At(gate_up, 19, 199), 8.0f * F8E4M3ToFloat(0x38 + 7));
}

TEST_F(WeightLoaderTest, APartlyFP8GroupBecomesBF16) {
  config_.projections = kFp8Format;
  MakeF8("model.layers.0.mlp.gate_proj.weight", {0.3f});
  const PackedWeight gate_up = LoadOrDie(0).layers[0].mlp.gate_up;
  EXPECT_EQ(gate_up.format.code, DType::kBF16);
  EXPECT_EQ(FakeDevice::At(gate_up, 3, 1), Rounded(F8E4M3ToFloat(0x39) * 0.3f));
  ExpectRows(gate_up, 10, "model.layers.0.mlp.up_proj.weight");
}

TEST_F(WeightLoaderTest, AnExpertUnlikeTheOthersIsRefusedByName) {
  config_.projections = kFp8Format;
  for (const char* const name : {"gate_proj", "up_proj"}) {
    MakeF8("model.layers.1.mlp.experts.0." + std::string(name) + ".weight", {0.5f});
  }
  const absl::Status status = Load(0).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("model.safetensors: tensor model.layers.1.mlp.experts.1.gate_proj.weight: bf16, allowed fp8, "
                "as the layer's other experts have"));
}

// Ranks exchange rows in the form that their experts read, so a rank also looks at the others' experts.
TEST_F(WeightLoaderTest, AnExpertOfAnotherRankThatIsNotFp8IsRefusedByName) {
  config_.projections = kFp8Format;
  for (const char* const expert : {"0", "1"}) {
    for (const char* const name : {"gate_proj", "up_proj"}) {
      MakeF8(absl::StrCat("model.layers.1.mlp.experts.", expert, ".", name, ".weight"), {0.5f});
    }
  }
  for (const int rank : {0, 1}) {
    EXPECT_THAT(
        std::string(
            Load(0, nullptr, {.layout = RankLayout::DataParallel(2), .rank = rank}).status().message()),
        HasSubstr(rank == 0 ? "experts.2.gate_proj.weight: bf16, allowed fp8, as the layer's other"
                            : "experts.0.gate_proj.weight: fp8, allowed bf16, as the layer's other"));
  }
}

TEST_F(WeightLoaderTest, WithoutQLoraThereIsOneQProjection) {
  config_.q_lora_rank = 0;
  tensors_ = TensorsFor(config_);
  const MlaWeights mla = LoadOrDie(0).layers[0].self_attn;
  ExpectRows(mla.qkv_a, 0, "model.layers.0.self_attn.q_proj.weight");
  ExpectRows(mla.qkv_a, 12, "model.layers.0.self_attn.kv_a_proj_with_mqa.weight");
  EXPECT_FALSE(mla.q_b);
  EXPECT_EQ(mla.q_a_layernorm, nullptr);
}

TEST_F(WeightLoaderTest, BiasesAreFusedLikeTheirWeights) {
  config_.attention_bias = true;
  tensors_ = TensorsFor(config_);
  const MlaWeights mla = LoadOrDie(0).layers[0].self_attn;
  ExpectVector(mla.qkv_a_bias, "model.layers.0.self_attn.q_a_proj.bias");
  ExpectVector(mla.qkv_a_bias + 4, "model.layers.0.self_attn.kv_a_proj_with_mqa.bias");
  ExpectVector(mla.o_proj_bias, "model.layers.0.self_attn.o_proj.bias");
}

TEST_F(WeightLoaderTest, QProjHasNoBias) {
  config_.attention_bias = true;
  config_.q_lora_rank = 0;
  tensors_ = TensorsFor(config_);
  const MlaWeights mla = LoadOrDie(0).layers[0].self_attn;
  for (int i = 0; i < 12; ++i) EXPECT_EQ(mla.qkv_a_bias[i], 0.0f);
  ExpectVector(mla.qkv_a_bias + 12, "model.layers.0.self_attn.kv_a_proj_with_mqa.bias");
}

TEST_F(WeightLoaderTest, ATiedHeadIsTheEmbedding) {
  TieHead(true);
  ExpectRows(LoadOrDie(0).lm_head, 0, "model.embed_tokens.weight");
}

TEST_F(WeightLoaderTest, ATiedHeadWithOtherValuesIsRefused) {
  TieHead(true);
  Named(tensors_, "lm_head.weight").bytes.back() ^= 1;
  EXPECT_THAT(std::string(Load(0).status().message()),
              HasSubstr("tensor lm_head.weight: differs from model.embed_tokens.weight, although config.json "
                        "ties them: remove the tensor or set tie_word_embeddings to false"));
}

TEST_F(WeightLoaderTest, BF16PassesUnchanged) {
  RawTensor& norm = Named(tensors_, "model.norm.weight");
  norm.dtype = "BF16";
  norm.bytes = std::string("\x80\x3f\x00\xc0", 4) + std::string(12, '\0');  // 1, -2, 0...
  const V3Weights weights = LoadOrDie(0);
  EXPECT_EQ(weights.norm[0], 1.0f);
  EXPECT_EQ(weights.norm[1], -2.0f);
}

TEST_F(WeightLoaderTest, ModulesThatAreNotLoadedAreChecked) {
  EXPECT_EQ(LoadOrDie(1).mtp_modules.size(), 1u);
  Named(tensors_, "model.layers.3.enorm.weight").dtype = "U32";
  EXPECT_THAT(std::string(Load(0).status().message()),
              HasSubstr("tensor model.layers.3.enorm.weight: dtype: U32"));
}

TEST_F(WeightLoaderTest, ACheckpointWithoutItsModulesLoadsWithoutThem) {
  std::erase_if(tensors_, [](const RawTensor& tensor) {
    return tensor.name.starts_with("model.layers.2.") || tensor.name.starts_with("model.layers.3.");
  });
  EXPECT_EQ(LoadOrDie(0).mtp_modules.size(), 0u);
  EXPECT_THAT(std::string(Load(1).status().message()),
              HasSubstr("MTP modules: 1, allowed 0..0: config.json declares 2"));
}

TEST_F(WeightLoaderTest, RefusesMoreModulesThanThereAre) {
  EXPECT_THAT(std::string(Load(3).status().message()), HasSubstr("MTP modules: 3, allowed 0..2"));
}

TEST_F(WeightLoaderTest, ProgressEndsAtTheTotal) {
  for (const bool tied : {false, true}) {
    TieHead(tied);
    int64_t last = 0;
    int64_t total = 0;
    int calls = 0;
    const auto progress = [&](int64_t done_bytes, int64_t total_bytes) {
      EXPECT_GT(done_bytes, last);
      EXPECT_TRUE(total == 0 || total == total_bytes);
      last = done_bytes;
      total = total_bytes;
      ++calls;
    };
    ASSERT_TRUE(Load(1, progress).ok());
    EXPECT_EQ(last, total);
    EXPECT_GT(calls, 20);
  }
}

TEST_F(WeightLoaderTest, AFullDeviceIsAnError) {
  device_.limit_bytes = 1000;
  EXPECT_EQ(Load(0).status().code(), absl::StatusCode::kResourceExhausted);
}

// Files that other software wrote: PyTorch's writer, and transformers' names.
class ForeignCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(ForeignCheckpoint, LoadsWithAllModules) {
  const std::string dir = GetParam();
  const auto config = ReadModelConfig(dir + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  FakeDevice device;
  FakeStream stream;
  const int modules = config->num_nextn_predict_layers;
  const auto weights = LoadWeights(dir, *config, modules, device, stream, nullptr);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_EQ(weights->module_count(), modules);
}

INSTANTIATE_TEST_SUITE_P(Files, ForeignCheckpoint,
                         ::testing::Values("deploy/models/abacus", "tests/golden/checkpoints/fp8",
                                           "tests/golden/checkpoints/grouped",
                                           "tests/golden/checkpoints/deepseek_v32",
                                           "tests/golden/checkpoints/glm_moe_dsa",
                                           "tests/golden/checkpoints/joyai_llm_flash"));

TEST_F(WeightLoaderTest, RefusesWeightsAndScalesThatAreNotFiniteByName) {
  const std::vector<RawTensor> good = tensors_;
  const std::string infinity("\x00\x00\x80\x7f", 4);
  for (const RawTensor& tensor : good) {
    // What a module shares with the model is not loaded.
    const bool shared =
        tensor.name.find("layers.") != std::string::npos &&
        (tensor.name.ends_with("embed_tokens.weight") || tensor.name.ends_with("shared_head.head.weight"));
    if (shared) continue;
    tensors_ = good;
    RawTensor& poisoned = Named(tensors_, tensor.name);
    poisoned.bytes.replace(poisoned.bytes.size() - 4, 4, infinity);
    const absl::Status status = Load(2).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << tensor.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("tensor " + tensor.name + ": element ["))
        << tensor.name;
    EXPECT_THAT(std::string(status.message()), HasSubstr("NaN or infinite, allowed finite numbers"));
  }
}

}  // namespace
}  // namespace foredraft
