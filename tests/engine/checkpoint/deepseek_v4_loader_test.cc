// DeepSeek-V4 checkpoints into V4Weights (docs/deepseek-v4.md sections 7 and 8): every tensor reaches its
// member with the values that its format means, under each of its names; experts by rank; what is refused.

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/deepseek_v4_comparison.h"
#include "tests/engine/checkpoint/fake_device.h"
#include "tests/engine/input_scales.h"
#include "tools/quantize/quantize_checkpoint.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNames[] = {"deepseek_v4", "deepseek_v4_fp4", "deepseek_v4_f32"};

TEST(DeepseekV4Loader, EveryTensorReachesItsWeight) {
  for (const std::string name : kNames) {
    SCOPED_TRACE(name);
    const auto loaded = Load(GoldenDir(name));
    const ModelConfig config = ConfigOf(GoldenDir(name));
    ASSERT_EQ(loaded->weights.modules.size(), 1u);
    Comparison(config, GoldenDir(name)).Model(loaded->weights);
  }
}

TEST(DeepseekV4Loader, KeepsTheFormatOfProjections) {
  const V4LayerWeights layer = Load(GoldenDir("deepseek_v4_fp4"))->weights.layers[0];
  EXPECT_EQ(layer.attn.wq_a.format.code, DType::kF8E4M3);
  EXPECT_EQ(layer.ffn.shared.gate_up.format.code, DType::kF8E4M3);
  EXPECT_EQ(layer.ffn.expert_gate_up.first.format.code, DType::kF4E2M1);
  EXPECT_EQ(layer.ffn.expert_down.first.format.code, DType::kF4E2M1);
  EXPECT_EQ(layer.attn.compressor.wkv.format.code, DType::kBF16);
}

// As NVIDIA's checkpoints: NVFP4 in the target, what DeepSeek ships in the module.
TEST(DeepseekV4Loader, ExpertsInNvfp4BesideThoseOfTheModuleInMxfp4) {
  const std::string dir = GoldenDir("deepseek_v4_nvfp4");
  EXPECT_EQ(ConfigOf(dir).experts, kNvfp4Format);
  const auto cast = Load(dir), original = Load(GoldenDir("deepseek_v4_fp4"));
  ASSERT_EQ(cast->weights.modules.size(), 1u);
  EXPECT_EQ(cast->weights.layers[0].attn.wq_a.format.code, DType::kF8E4M3);
  EXPECT_EQ(cast->weights.layers[0].ffn.shared.gate_up.format.code, DType::kF8E4M3);
  const MoeWeights& module = cast->weights.modules[0].layer.ffn;
  EXPECT_EQ(module.expert_gate_up.first.format, WithWideScales(kMxfp4Format));
  EXPECT_EQ(module.expert_down.first.format, WithWideScales(kMxfp4Format));
  for (size_t layer = 0; layer < cast->weights.layers.size(); ++layer) {
    const MoeWeights &a = cast->weights.layers[layer].ffn, &b = original->weights.layers[layer].ffn;
    ASSERT_EQ(a.expert_gate_up.first.format, kNvfp4Format);
    ASSERT_EQ(a.expert_down.first.format, kNvfp4Format);
    for (int expert = 0; expert < a.expert_down.count; ++expert) {
      for (int row = 0; row < 64; ++row) {
        for (int column = 0; column < 32; ++column) {
          ASSERT_EQ(FakeDevice::At(a.expert_gate_up.items[expert], row, column),
                    FakeDevice::At(b.expert_gate_up.items[expert], row, column));
          ASSERT_EQ(FakeDevice::At(a.expert_down.items[expert], row, column),
                    FakeDevice::At(b.expert_down.items[expert], row, column));
        }
      }
    }
  }
}

// moe.inputs: nvfp4 rounds inputs of the experts that are in NVFP4.
TEST(DeepseekV4Loader, InputsOfExpertsInNvfp4HaveScales) {
  const std::string plain = GoldenDir("deepseek_v4_nvfp4"), dir = MakeTestDir("inputs");
  CopyWithInputScales(plain, dir, OwnInputScale);
  ModelConfig config = ConfigOf(dir);
  config.nvfp4_inputs = true;
  FakeDevice device;
  FakeStream stream;
  const auto weights = As<V4Weights>(LoadWeights(dir, config, 1, device, stream, nullptr));
  ASSERT_TRUE(weights.ok()) << weights.status();
  for (const V4LayerWeights& layer : weights->layers) {
    EXPECT_FALSE(layer.ffn.gate_up_inputs.alike);
    EXPECT_EQ(layer.ffn.down_inputs.values[1], OwnInputScale(".experts.1."));
  }
  EXPECT_FALSE(weights->modules[0].layer.ffn.gate_up_inputs) << "experts in MXFP4";
  EXPECT_THAT(std::string(LoadWeights(plain, config, 1, device, stream, nullptr).status().message()),
              HasSubstr("experts.0.w1.input_scale: missing"));
}

TEST(DeepseekV4Loader, ARankHasItsPartOfTheExpertsAndTheRest) {
  for (const int ranks : {2, 4, 8}) {
    for (int rank = 0; rank < ranks; ++rank) {
      SCOPED_TRACE(absl::StrCat(rank, " of ", ranks));
      const ModelShard shard{.layout = RankLayout::DataParallel(ranks), .rank = rank};
      const std::string dir = GoldenDir("deepseek_v4_fp4");
      const ModelConfig config = ConfigOf(dir);
      Comparison(config, dir, shard).Model(Load(dir, 1, shard)->weights);
    }
  }
}

TEST(DeepseekV4Loader, LoadsWithoutTheModule) {
  const std::string dir = GoldenDir("deepseek_v4");
  const auto loaded = Load(dir, 0);
  EXPECT_TRUE(loaded->weights.modules.empty());
  const ModelConfig config = ConfigOf(dir);
  Comparison(config, dir).Model(loaded->weights);
}

// ---- DSpark in the place of modules ----

std::vector<RawTensor> TensorsOf(const std::string& dir) {
  const auto checkpoint = Checkpoint::Open(dir);
  std::vector<RawTensor> tensors;
  for (const TensorLocation& tensor : checkpoint->tensors()) {
    RawTensor raw{tensor.entry->name, tensor.entry->dtype, tensor.entry->shape,
                  std::string(tensor.entry->bytes, '\0')};
    EXPECT_TRUE(tensor.file->Read(*tensor.entry, 0, tensor.entry->bytes, raw.bytes.data()).ok());
    tensors.push_back(std::move(raw));
  }
  return tensors;
}

constexpr const char* kDSparkNames[] = {"deepseek_v4_dspark", "deepseek_v4_dspark_fp4"};

TEST(DeepseekV4Loader, EveryTensorOfAStageReachesItsWeight) {
  for (const std::string name : kDSparkNames) {
    SCOPED_TRACE(name);
    const std::string dir = GoldenDir(name);
    const ModelConfig config = ConfigOf(dir);
    const auto loaded = Load(dir, 3);
    ASSERT_EQ(loaded->weights.dspark.stages.size(), 3u);
    Comparison(config, dir).Model(loaded->weights);
    for (const int ranks : {2, 8}) {
      const ModelShard shard{.layout = RankLayout::DataParallel(ranks), .rank = 1};
      Comparison(config, dir, shard).Model(Load(dir, 3, shard)->weights);
    }
    const absl::StatusOr<CheckpointSummary> summary = SummarizeCheckpoint(dir);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->config.num_nextn_predict_layers, 3);
    EXPECT_GT(summary->mtp_parameters, 0);
    EXPECT_GT(summary->drafter_bytes, 2 * summary->mtp_parameters / 5);
  }
}

// A checkpoint with DSpark whose tensors under "mtp." `change` has changed.
std::string WriteWithStages(const std::string& name,
                            const std::function<void(std::vector<RawTensor>&)>& change) {
  std::vector<RawTensor> tensors = TensorsOf(GoldenDir("deepseek_v4_dspark"));
  change(tensors);
  const std::string dir = MakeTestDir(name);
  WriteSafetensors(dir + "/model.safetensors", tensors);
  std::filesystem::copy_file(GoldenDir("deepseek_v4_dspark") + "/config.json", dir + "/config.json");
  return dir;
}

// Adds `copy`, a copy of the tensor `name`.
RawTensor& AddCopy(std::vector<RawTensor>& tensors, const std::string& name, const std::string& copy) {
  const auto found = std::find_if(tensors.begin(), tensors.end(),
                                  [&](const RawTensor& tensor) { return tensor.name == name; });
  RawTensor tensor = *found;
  tensor.name = copy;
  tensors.push_back(std::move(tensor));
  return tensors.back();
}

// Without drafts the stages are not read, whatever they are; with drafts what does not fit is named.
TEST(DeepseekV4Loader, ServesTheTargetOfAnyDSpark) {
  struct Case {
    const char* name;
    std::function<void(std::vector<RawTensor>&)> change;
    const char* error;  // with drafts; null: none
  };
  const auto is_of = [](const char* beginning) {
    return [=](const RawTensor& tensor) { return tensor.name.starts_with(beginning); };
  };
  const Case cases[] = {{"two_stages", [&](auto& tensors) { std::erase_if(tensors, is_of("mtp.2.")); },
                         "tensor mtp.2.hc_attn_fn: missing"},
                        {"no_stages", [&](auto& tensors) { std::erase_if(tensors, is_of("mtp.")); },
                         "tensor mtp.0.main_proj.weight: missing"},
                        {"a_module",
                         [](auto& tensors) {
                           tensors.push_back({"mtp.0.enorm.weight", "BF16", {2}, "    "});
                         },
                         "tensor mtp.0.enorm.weight: not part of DeepseekV4ForCausalLM"},
                        {"another_head",
                         [](auto& tensors) {
                           tensors.push_back({"mtp.2.markov_head.embed.weight", "BF16", {2}, "    "});
                         },
                         "tensor mtp.2.markov_head.embed.weight: not part of"},
                        {"copies",
                         [](auto& tensors) {
                           AddCopy(tensors, "embed.weight", "mtp.0.embed.weight");
                           AddCopy(tensors, "head.weight", "mtp.2.head.weight");
                           tensors.push_back({"mtp.1.ffn.gate.bias_vl", "F32", {8}, std::string(32, '\0')});
                         },
                         nullptr}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    const std::string dir = WriteWithStages(c.name, c.change);
    const auto target = Load(dir, 0);
    EXPECT_TRUE(target->weights.dspark.stages.empty());
    Comparison(ConfigOf(dir), GoldenDir("deepseek_v4_dspark")).Model(target->weights);
    EXPECT_EQ(SummarizeCheckpoint(dir)->config.num_nextn_predict_layers, c.error == nullptr ? 3 : 0);
    FakeDevice device;
    FakeStream stream;
    const auto loaded = LoadWeights(dir, ConfigOf(dir), 3, device, stream, nullptr);
    if (c.error == nullptr) {
      EXPECT_TRUE(loaded.ok()) << loaded.status();
    } else {
      EXPECT_THAT(std::string(loaded.status().message()), HasSubstr(c.error));
    }
  }
}

// config.json ties nothing here, so the error does not speak of that.
TEST(DeepseekV4Loader, RefusesDraftsWithAnotherTargetsEmbeddingOrHead) {
  for (const auto& [name, copy] : {std::pair<std::string, std::string>("embed.weight", "mtp.0.embed.weight"),
                                   {"head.weight", "mtp.2.head.weight"}}) {
    const std::string dir =
        WriteWithStages("differs_" + copy, [&name = name, &copy = copy](std::vector<RawTensor>& tensors) {
          AddCopy(tensors, name, copy).bytes.back() ^= 1;
        });
    EXPECT_TRUE(Load(dir, 0)->weights.dspark.stages.empty());
    FakeDevice device;
    FakeStream stream;
    const absl::Status refused = LoadWeights(dir, ConfigOf(dir), 3, device, stream, nullptr).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(
        std::string(refused.message()),
        HasSubstr("tensor " + copy + ": differs from " + name +
                  ", with which drafts are made: the drafter seems to belong to another target. Remove "
                  "the tensor to draft with the target's all the same, or serve without "
                  "speculative_config"));
  }
}

// ---- transformers' names ----

using Names = std::vector<std::pair<std::string, std::string>>;

// DeepSeek's name, and what transformers 5.23 writes for it behind "model.": by default...
const Names kSavedNames = {{"embed.weight", "embed_tokens.weight"},
                           {"hc_head_fn", "hc_head.hc_fn"},
                           {"hc_head_base", "hc_head.hc_base"},
                           {"hc_head_scale", "hc_head.hc_scale"},
                           {".attn.kv_norm.", ".attn.norm."}};
// ...and with save_original_format=False, by the first row that fits.
const Names kOwnNames = {
    {"embed.weight", "embed_tokens.weight"},
    {"hc_head_fn", "hc_head.hc_fn"},
    {"hc_head_base", "hc_head.hc_base"},
    {"hc_head_scale", "hc_head.hc_scale"},
    {".hc_attn_", ".attn_hc."},
    {".hc_ffn_", ".ffn_hc."},
    {".attn_norm.", ".input_layernorm."},
    {".ffn_norm.", ".post_attention_layernorm."},
    {".attn.wq_a.", ".self_attn.q_a_proj."},
    {".attn.q_norm.", ".self_attn.q_a_norm."},
    {".attn.wq_b.", ".self_attn.q_b_proj."},
    {".attn.wkv.", ".self_attn.kv_proj."},
    {".attn.kv_norm.", ".self_attn.kv_norm."},
    {".attn.wo_a.", ".self_attn.o_a_proj."},
    {".attn.wo_b.", ".self_attn.o_b_proj."},
    {".attn.attn_sink", ".self_attn.sinks"},
    {".attn.indexer.wq_b.", ".self_attn.compressor.indexer.q_b_proj."},
    {".attn.indexer.weights_proj.", ".self_attn.compressor.indexer.scorer.weights_proj."},
    {".attn.indexer.compressor.wkv.", ".self_attn.compressor.indexer.kv_proj."},
    {".attn.indexer.compressor.wgate.", ".self_attn.compressor.indexer.gate_proj."},
    {".attn.indexer.compressor.ape", ".self_attn.compressor.indexer.position_bias"},
    {".attn.indexer.compressor.norm.", ".self_attn.compressor.indexer.kv_norm."},
    {".attn.compressor.wkv.", ".self_attn.compressor.kv_proj."},
    {".attn.compressor.wgate.", ".self_attn.compressor.gate_proj."},
    {".attn.compressor.ape", ".self_attn.compressor.position_bias"},
    {".attn.compressor.norm.", ".self_attn.compressor.kv_norm."},
    {".ffn.gate.bias", ".mlp.gate.e_score_correction_bias"},
    {".ffn.gate.", ".mlp.gate."},
    {".ffn.shared_experts.w1.", ".mlp.shared_experts.gate_proj."},
    {".ffn.shared_experts.w2.", ".mlp.shared_experts.down_proj."},
    {".ffn.shared_experts.w3.", ".mlp.shared_experts.up_proj."}};

std::string Renamed(const std::string& name, const Names& names) {
  for (const auto& [own, saved] : names) {
    if (const size_t at = name.find(own); at != std::string::npos) {
      return absl::StrCat("model.", name.substr(0, at), saved, name.substr(at + own.size()));
    }
  }
  return "model." + name;
}

// The target without the module, which transformers leaves out.
std::string WriteRenamed(const std::string& test_dir, std::vector<RawTensor> tensors) {
  const std::string dir = MakeTestDir(test_dir);
  std::erase_if(tensors, [](const RawTensor& tensor) { return tensor.name.starts_with("mtp."); });
  WriteSafetensors(dir + "/model.safetensors", tensors);
  return dir;
}

// Everything that the device has of the target, matrix after matrix.
void ExpectTheTargetOf(const std::string& golden, const std::string& dir) {
  const ModelConfig config = ConfigOf(GoldenDir(golden));
  FakeDevice device;
  FakeStream stream;
  const auto weights = As<V4Weights>(LoadWeights(dir, config, 0, device, stream, nullptr));
  ASSERT_TRUE(weights.ok()) << weights.status();
  Comparison(config, GoldenDir(golden)).Model(*weights);
}

TEST(DeepseekV4Loader, TakesTransformersNames) {
  for (const std::string name : kNames) {
    SCOPED_TRACE(name);
    std::vector<RawTensor> tensors = TensorsOf(GoldenDir(name));
    for (RawTensor& tensor : tensors) {
      if (tensor.name.starts_with("mtp.") || tensor.name == "head.weight") continue;
      tensor.name = Renamed(tensor.name, kSavedNames);
    }
    Named(tensors, "model.layers.1.attn.norm.weight");
    ExpectTheTargetOf(name, WriteRenamed("saved", std::move(tensors)));
  }
}

// One tensor with the experts of a layer.
void FuseExperts(std::vector<RawTensor>& tensors, int layer, const ModelConfig& config) {
  const std::string experts = absl::StrCat("layers.", layer, ".ffn.experts.");
  const std::string fused = absl::StrCat("model.layers.", layer, ".mlp.experts.");
  RawTensor gate_up{fused + "gate_up_proj"}, down{fused + "down_proj"};
  for (int expert = 0; expert < config.n_routed_experts; ++expert) {
    for (const char* part : {"w1", "w3", "w2"}) {
      const RawTensor& tensor = Named(tensors, absl::StrCat(experts, expert, ".", part, ".weight"));
      RawTensor& into = part == std::string("w2") ? down : gate_up;
      into.dtype = tensor.dtype;
      into.bytes += tensor.bytes;
    }
  }
  const int64_t width = config.moe_intermediate_size, hidden = config.hidden_size;
  gate_up.shape = {config.n_routed_experts, 2 * width, hidden};
  down.shape = {config.n_routed_experts, hidden, width};
  std::erase_if(tensors, [&](const RawTensor& tensor) { return tensor.name.starts_with(experts); });
  tensors.push_back(std::move(gate_up));
  tensors.push_back(std::move(down));
}

std::vector<RawTensor> OwnFormat(const std::string& name) {
  const ModelConfig config = ConfigOf(GoldenDir(name));
  std::vector<RawTensor> tensors = TensorsOf(GoldenDir(name));
  for (int layer = 0; layer < config.num_hidden_layers; ++layer) FuseExperts(tensors, layer, config);
  for (RawTensor& tensor : tensors) {
    if (tensor.name.starts_with("mtp.") || tensor.name.starts_with("model.")) continue;
    tensor.name = tensor.name == "head.weight" ? "lm_head.weight" : Renamed(tensor.name, kOwnNames);
  }
  return tensors;
}

TEST(DeepseekV4Loader, TakesTransformersOwnFormat) {
  for (const std::string name : {"deepseek_v4", "deepseek_v4_f32"}) {
    SCOPED_TRACE(name);
    ExpectTheTargetOf(name, WriteRenamed("own", OwnFormat(name)));
  }
}

// quantize writes DeepSeek's names, whatever it reads.
TEST(DeepseekV4Loader, QuantizesTransformersOwnFormat) {
  const std::string golden = GoldenDir("deepseek_v4");
  const std::string own = WriteRenamed("own", OwnFormat("deepseek_v4"));
  std::filesystem::copy_file(golden + "/config.json", own + "/config.json");
  const std::string out = MakeTestDir("quantized");
  for (const auto& [in, dir] : {std::pair(golden, out + "/official"), std::pair(own, out + "/own")}) {
    const auto report =
        QuantizeCheckpoint({.in_dir = in, .out_dir = dir, .format = kFp8Format, .threads = 2}, nullptr);
    ASSERT_TRUE(report.ok()) << report.status();
  }
  std::vector<RawTensor> official = TensorsOf(out + "/official");
  std::erase_if(official, [](const RawTensor& tensor) { return tensor.name.starts_with("mtp."); });
  std::vector<RawTensor> tensors = TensorsOf(out + "/own");
  ASSERT_EQ(tensors.size(), official.size());
  EXPECT_EQ(Named(tensors, "layers.2.ffn.experts.3.w2.scale").dtype, "F8_E8M0");
  for (const RawTensor& tensor : official) EXPECT_EQ(Named(tensors, tensor.name).bytes, tensor.bytes);
}

// ---- refusals ----

absl::Status LoadTensors(const std::vector<RawTensor>& tensors, const std::string& golden) {
  const std::string dir = WriteRenamed("broken", tensors);
  FakeDevice device;
  FakeStream stream;
  return LoadWeights(dir, ConfigOf(GoldenDir(golden)), 0, device, stream, nullptr).status();
}

TEST(DeepseekV4Loader, RefusesATensorUnderTwoNames) {
  std::vector<RawTensor> tensors = TensorsOf(GoldenDir("deepseek_v4"));
  RawTensor twin = Named(tensors, "layers.1.attn.kv_norm.weight");
  twin.name = "model.layers.1.attn.norm.weight";
  tensors.push_back(twin);
  EXPECT_THAT(std::string(LoadTensors(tensors, "deepseek_v4").message()),
              HasSubstr("layers.1.attn.norm.weight: also in"));
}

TEST(DeepseekV4Loader, RefusesFusedExpertsOfAnotherShape) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{4, 128, 64}, {8, 4096}}) {
    std::vector<RawTensor> tensors = OwnFormat("deepseek_v4");
    Named(tensors, "model.layers.2.mlp.experts.gate_up_proj").shape = shape;
    const absl::Status status = LoadTensors(tensors, "deepseek_v4");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr("layers.2.ffn.experts.0.w1.weight: missing"));
  }
  std::vector<RawTensor> tensors = OwnFormat("deepseek_v4");
  Named(tensors, "model.layers.2.mlp.experts.gate_up_proj").shape = {8, 32, 128};
  EXPECT_THAT(std::string(LoadTensors(tensors, "deepseek_v4").message()),
              HasSubstr("model.layers.2.mlp.experts.gate_up_proj (layers.2.ffn.experts.0.w1.weight): shape: "
                        "[16, 128], config.json makes it [32, 64]"));
}

TEST(DeepseekV4Loader, RefusesAnExpertThatThereIsNot) {
  for (const int64_t id : {int64_t{8}, int64_t{-1}}) {
    std::vector<RawTensor> tensors = TensorsOf(GoldenDir("deepseek_v4"));
    std::memcpy(&Named(tensors, "layers.0.ffn.gate.tid2eid").bytes[8 * (3 * 5 + 1)], &id, sizeof(id));
    const absl::Status status = LoadTensors(tensors, "deepseek_v4");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(absl::StrCat("tid2eid: element [5, 1]: ", id, ", allowed 0..7")));
  }
}

TEST(DeepseekV4Loader, RefusesAScaleThatIsNaN) {
  const struct {
    const char* name;
    int64_t index;
    const char* element;
  } cases[] = {{"layers.1.attn.wq_a.scale", 1, "[0, 1]"},
               {"layers.1.attn.wo_a.scale", 0, "[0, 0]"},
               {"layers.2.ffn.experts.3.w1.scale", 7, "[1, 2]"}};
  for (const auto& [name, index, element] : cases) {
    std::vector<RawTensor> tensors = TensorsOf(GoldenDir("deepseek_v4_fp4"));
    Named(tensors, name).bytes[index] = '\xff';
    const absl::Status status = LoadTensors(tensors, "deepseek_v4_fp4");
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(name, ": element ", element, ": NaN")));
  }
}

}  // namespace
}  // namespace foredraft
