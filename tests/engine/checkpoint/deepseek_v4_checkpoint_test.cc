// Checkpoints of DeepSeek-V4 against the description of its tensors (docs/deepseek-v4.md sections 7 and 8).

#include <algorithm>
#include <functional>
#include <string>

#include "absl/strings/match.h"
#include "engine/cache/cache_groups.h"
#include "engine/checkpoint/formats/stored_format.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/slot_arrays.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/checkpoint_files.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

constexpr char kGoldens[] = "tests/golden/checkpoints/";

ModelConfig GoldenConfig(const std::string& name) {
  const auto config = ReadModelConfig(kGoldens + name + "/config.json");
  EXPECT_TRUE(config.ok()) << config.status();
  return *config;
}

ModelConfig FlashConfig() {
  nlohmann::json config = nlohmann::json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
    "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "moe_intermediate_size": 2048,
    "max_position_embeddings": 1048576, "eos_token_id": 1,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]}})");
  nlohmann::json ratios = {0, 0};
  for (int i = 0; i < 20; ++i) ratios.insert(ratios.end(), {4, 128});
  ratios.insert(ratios.end(), {4, 0});
  config["compress_ratios"] = ratios;
  const auto parsed = ParseModelConfig(config.dump(), "config.json");
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return *parsed;
}

int64_t ElementsOf(const std::vector<int64_t>& shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return count;
}

// The dtype in which DeepSeek stores the tensor.
std::string ShippedDType(const ModelConfig& config, const TensorSpec& spec) {
  if (spec.kind == TensorKind::kIds) return "I64";
  if (!spec.scale.empty() && IsF8(config.projections)) return Is4Bit(spec.format) ? "I8" : "F8_E4M3";
  const bool exact = spec.kind == TensorKind::kBias || absl::StrContains(spec.name, "hc_") ||
                     absl::EndsWith(spec.name, ".ape");
  return exact ? "F32" : "BF16";
}

// Zeros in every tensor of the description, as DeepSeek stores them.
std::vector<RawTensor> ShippedTensors(const ModelConfig& config) {
  const ModelDescription description = DescribeModel(config, config.num_nextn_predict_layers);
  std::vector<RawTensor> tensors;
  const auto add = [&](const std::string& name, const std::string& dtype, const std::vector<int64_t>& shape) {
    const int64_t bytes = dtype == "I64" ? 8 : (dtype == "F32" ? 4 : (dtype == "BF16" ? 2 : 1));
    tensors.push_back({name, dtype, shape, std::string(ElementsOf(shape) * bytes, '\0')});
  };
  for (const TensorSpec& spec : description.tensors) {
    const std::string dtype = ShippedDType(config, spec);
    std::vector<int64_t> shape = spec.shape;
    if (dtype == "I8") shape[1] /= 2;
    add(spec.name, dtype, shape);
    if (dtype == "I8") add(spec.scale, "F8_E8M0", {shape[0], spec.shape[1] / 32});
    if (dtype == "F8_E4M3") add(spec.scale, "F8_E8M0", ScaleShape(config.projections, spec.shape));
  }
  return tensors;
}

absl::StatusOr<int> Check(const ModelConfig& config, const std::vector<RawTensor>& tensors) {
  const std::string dir = MakeTestDir("v4");
  WriteSafetensors(dir + "/model.safetensors", tensors);
  const auto checkpoint = Checkpoint::Open(dir);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return CheckCheckpoint(*checkpoint, config);
}

TEST(DeepseekV4Checkpoint, TheGoldensAreWhole) {
  for (const char* name : {"deepseek_v4", "deepseek_v4_fp4", "deepseek_v4_f32"}) {
    SCOPED_TRACE(name);
    const auto summary = SummarizeCheckpoint(std::string(kGoldens) + name);
    ASSERT_TRUE(summary.ok()) << summary.status();
    EXPECT_EQ(summary->config.num_nextn_predict_layers, 1);
    EXPECT_GT(summary->mtp_parameters, 0);
    EXPECT_LT(summary->active_parameters, summary->parameters);
  }
  const auto quantised = SummarizeCheckpoint(std::string(kGoldens) + "deepseek_v4_fp4");
  for (const char* dtype : {"I8", "F8_E4M3", "F8_E8M0", "BF16", "F32", "I64"}) {
    EXPECT_GT(quantised->dtype_bytes.at(dtype), 0) << dtype;
  }
}

// The published V4-Flash: 69,187 tensors, 148.65 GiB.
TEST(DeepseekV4Checkpoint, DescribesEveryTensorOfFlash) {
  const ModelConfig config = FlashConfig();
  const ModelDescription description = DescribeModel(config, 1);
  int64_t count = 0;
  double bytes = 0;
  for (const TensorSpec& spec : description.tensors) {
    const std::string dtype = ShippedDType(config, spec);
    const double elements = static_cast<double>(spec.element_count());
    ++count;
    bytes += elements * (dtype == "I64"    ? 8
                         : dtype == "F32"  ? 4
                         : dtype == "BF16" ? 2
                         : dtype == "I8"   ? 0.5
                                           : 1);
    if (spec.scale.empty()) continue;
    ++count;
    bytes += dtype == "I8" ? elements / 32
                           : static_cast<double>(ElementsOf(ScaleShape(config.projections, spec.shape)));
  }
  EXPECT_EQ(count, 69187);
  EXPECT_NEAR(bytes / (1 << 30), 148.65, 0.01);
  EXPECT_EQ(static_cast<double>(SummarizeConfig(config).bytes), bytes) << "what `foredraft info` says";
}

TEST(DeepseekV4Checkpoint, CountsTheCacheOfFlash) {
  const ModelConfig config = FlashConfig();
  const CheckpointSummary summary = SummarizeConfig(config);
  EXPECT_EQ(summary.kv_bytes_per_token, 6880);
  EXPECT_EQ(summary.kv_bytes_per_token_of_module, 0);  // its keys are in the window
  EXPECT_EQ(summary.window_bytes_per_sequence,
            WindowBytesPerSequence(CacheGroupsOf(config, 1, 32), kMaxDraftLen));
}

TEST(DeepseekV4Checkpoint, TakesExpertsInFp8OrUnquantised) {
  const ModelConfig config = GoldenConfig("deepseek_v4_fp4");
  std::vector<RawTensor> tensors = ShippedTensors(config);
  const std::string expert = "layers.0.ffn.experts.3.w1";
  RawTensor& codes = Named(tensors, expert + ".weight");
  codes = {codes.name, "F8_E4M3", {32, 160}, std::string(32 * 160, '\0')};
  Named(tensors, expert + ".scale") = {expert + ".scale", "F8_E8M0", {1, 2}, std::string(2, '\0')};
  EXPECT_TRUE(Check(config, tensors).ok()) << Check(config, tensors).status();
  Named(tensors, expert + ".weight") = {
      expert + ".weight", "BF16", {32, 160}, std::string(2 * 32 * 160, '\0')};
  std::erase_if(tensors, [&](const RawTensor& tensor) { return tensor.name == expert + ".scale"; });
  EXPECT_TRUE(Check(config, tensors).ok()) << Check(config, tensors).status();
}

struct BrokenTensor {
  const char* name;
  const char* tensor;
  std::function<void(RawTensor&)> breaks;  // empty: the tensor is left out
  const char* error;
};

void SetDType(RawTensor& tensor, const char* dtype, int64_t bytes_per_element) {
  tensor.dtype = dtype;
  tensor.bytes.assign(ElementsOf(tensor.shape) * bytes_per_element, '\0');
}
void SetShape(RawTensor& tensor, std::vector<int64_t> shape) {
  const int64_t bytes_per_element = static_cast<int64_t>(tensor.bytes.size()) / ElementsOf(tensor.shape);
  tensor.shape = std::move(shape);
  tensor.bytes.assign(ElementsOf(tensor.shape) * bytes_per_element, '\0');
}

const BrokenTensor kBrokenTensors[] = {
    {"NoSink", "layers.1.attn.attn_sink", nullptr, "layers.1.attn.attn_sink: missing"},
    {"NoScale", "layers.1.attn.wq_a.scale", nullptr,
     "layers.1.attn.wq_a.scale: missing: the weight is F8_E4M3"},
    {"NoExpertScale", "layers.1.ffn.experts.0.w2.scale", nullptr, "w2.scale: missing: the weight is I8"},
    {"ScaleInF32", "layers.1.attn.wq_a.scale", [](RawTensor& t) { SetDType(t, "F32", 4); },
     "wq_a.scale: dtype: F32, allowed F8_E8M0"},
    {"ScaleShape", "layers.1.attn.wq_a.scale",
     [](RawTensor& t) {
       SetShape(t, {1, 1});
     },
     "wq_a.scale: shape: [1, 1], config.json makes it [1, 2]"},
    {"ExpertScaleShape", "layers.1.ffn.experts.0.w1.scale",
     [](RawTensor& t) {
       SetShape(t, {32, 2});
     },
     "w1.scale: shape: [32, 2], config.json makes it [32, 5]"},
    {"ExpertShape", "layers.1.ffn.experts.0.w1.weight",
     [](RawTensor& t) {
       SetShape(t, {32, 160});
     },
     "w1.weight: shape: [32, 160], config.json makes it [32, 80]"},
    {"SharedExpertInFp4", "layers.1.ffn.shared_experts.w1.weight",
     [](RawTensor& t) {
       SetShape(t, {32, 80});
       SetDType(t, "I8", 1);
     },
     "shared_experts.w1.weight: dtype: I8, allowed BF16, F32, F8_E4M3"},
    {"HashTable", "layers.0.ffn.gate.tid2eid", [](RawTensor& t) { SetDType(t, "I32", 4); },
     "tid2eid: dtype: I32, allowed I64"},
    {"HashTableShape", "layers.0.ffn.gate.tid2eid",
     [](RawTensor& t) {
       SetShape(t, {64, 2});
     },
     "tid2eid: shape: [64, 2], config.json makes it [64, 3]"},
    {"BiasInHashLayer", "layers.2.ffn.gate.bias", [](RawTensor& t) { t.name = "layers.0.ffn.gate.bias"; },
     "layers.2.ffn.gate.bias: missing"},
    {"Positions", "layers.1.attn.compressor.ape",
     [](RawTensor& t) {
       SetShape(t, {4, 32});
     },
     "ape: shape: [4, 32], config.json makes it [128, 32]"},
    {"Overlap", "layers.2.attn.compressor.wkv.weight",
     [](RawTensor& t) {
       SetShape(t, {32, 160});
     },
     "wkv.weight: shape: [32, 160], config.json makes it [64, 160]"},
    {"Streams", "layers.2.hc_attn_fn",
     [](RawTensor& t) {
       SetShape(t, {24, 320});
     },
     "hc_attn_fn: shape: [24, 320], config.json makes it [8, 320]"},
    {"ModuleHead", "mtp.0.hc_head_fn", nullptr, "mtp.0.hc_head_fn: missing"},
    {"Extra", "layers.2.attn.attn_sink", [](RawTensor& t) { t.name = "layers.2.attn.sink"; },
     "layers.2.attn.attn_sink: missing"},
};

class DeepseekV4CheckpointRefuses : public ::testing::TestWithParam<BrokenTensor> {};

TEST_P(DeepseekV4CheckpointRefuses, NamingTheTensor) {
  const ModelConfig config = GoldenConfig("deepseek_v4_fp4");
  std::vector<RawTensor> tensors = ShippedTensors(config);
  RawTensor& tensor = Named(tensors, GetParam().tensor);
  if (GetParam().breaks) {
    GetParam().breaks(tensor);
  } else {
    std::erase_if(tensors, [](const RawTensor& t) { return t.name == GetParam().tensor; });
  }
  const absl::Status status = Check(config, tensors).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(Cases, DeepseekV4CheckpointRefuses, ::testing::ValuesIn(kBrokenTensors),
                         [](const auto& info) { return info.param.name; });

TEST(DeepseekV4Checkpoint, RefusesATensorThatIsNotPartOfIt) {
  const ModelConfig config = GoldenConfig("deepseek_v4");
  std::vector<RawTensor> tensors = ShippedTensors(config);
  ASSERT_TRUE(Check(config, tensors).ok()) << Check(config, tensors).status();
  tensors.push_back({"layers.0.attn.compressor.ape", "F32", {1}, std::string(4, '\0')});
  EXPECT_THAT(std::string(Check(config, tensors).status().message()),
              HasSubstr("layers.0.attn.compressor.ape: not part of DeepseekV4ForCausalLM"));
}

}  // namespace
}  // namespace foredraft
