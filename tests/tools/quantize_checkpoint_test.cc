#include "tools/quantize/quantize_checkpoint.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/formats/host_tensor.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/model_kind.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/random_weight.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

// ---- rounding ----

std::vector<float> Normals(int count, uint64_t seed) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) {
    float sum = 0;
    for (int part = 0; part < 4; ++part) {
      sum += static_cast<float>(RandomBits(seed, 4 * i + part) >> 40) * 0x1p-24f - 0.5f;
    }
    values[i] = sum;
  }
  return values;
}

double Int4Error(const std::vector<float>& weights, float scale) {
  double error = 0;
  for (const float weight : weights) {
    const double value = std::clamp(std::nearbyint(weight / scale), -8.0f, 7.0f) * scale;
    error += (weight - value) * (weight - value);
  }
  return error;
}

// The search has candidates; a scan of all BF16 scales may find one that is a little better.
TEST(QuantizeInt4Group, HasNearlyTheLeastErrorOfAllScales) {
  double ours = 0, least = 0, plain = 0;
  for (int group = 0; group < 50; ++group) {
    const std::vector<float> weights = Normals(32, group);
    uint8_t codes[16];
    bf16 scale;
    const QuantizationError error = QuantizeInt4Group(weights.data(), 32, codes, &scale);
    EXPECT_NEAR(error.squared_error, Int4Error(weights, ToFloat(scale)), 1e-6);
    float largest = 0;
    for (const float weight : weights) largest = std::max(largest, std::fabs(weight));
    double best = INFINITY;
    for (float s = largest / 12; s < largest / 4;
         s = ToFloat(bf16{static_cast<uint16_t>(ToBf16(s).bits + 1)})) {
      best = std::min(best, Int4Error(weights, s));
    }
    EXPECT_LE(error.squared_error, 1.15 * best) << group;
    ours += error.squared_error;
    least += best;
    plain += Int4Error(weights, ToFloat(ToBf16(largest / 7.5f)));
  }
  EXPECT_LT(ours, 1.03 * least);
  EXPECT_LT(ours, 0.97 * plain) << "compressed-tensors' own scale, from the largest magnitude";
}

TEST(QuantizeInt4Group, KeepsValuesThatCodesHave) {
  std::vector<float> weights;
  for (int i = 0; i < 32; ++i) weights.push_back(static_cast<float>(i % 16 - 8) * 0.375f);
  uint8_t codes[16];
  bf16 scale;
  EXPECT_EQ(QuantizeInt4Group(weights.data(), 32, codes, &scale).squared_error, 0);
  EXPECT_EQ(ToFloat(scale), 0.375f);
  for (int i = 0; i < 32; ++i) EXPECT_EQ(codes[i / 2] >> (i % 2 * 4) & 15, i % 16);
}

TEST(QuantizeInt4Group, TakesZerosAndTheSmallestNumbers) {
  for (const float value : {0.0f, 0x1p-140f, 1e-38f}) {
    const std::vector<float> weights(32, value);
    uint8_t codes[16];
    bf16 scale;
    const QuantizationError error = QuantizeInt4Group(weights.data(), 32, codes, &scale);
    EXPECT_TRUE(std::isfinite(error.relative()));
    EXPECT_GT(ToFloat(scale), 0);
    EXPECT_LE(error.largest_error, value);
  }
}

TEST(QuantizeF8Block, KeepsEveryCode) {
  std::vector<float> weights;
  for (int code = 0; code < 256; ++code)
    weights.push_back((code & 0x7f) == 0x7f ? 0.0f : F8E4M3ToFloat(code));
  std::vector<uint8_t> codes(256);
  float scale = 0;
  const QuantizationError error = QuantizeF8Block(weights.data(), 128, 2, 128, codes.data(), 128, &scale);
  EXPECT_EQ(scale, 1.0f);
  EXPECT_EQ(error.squared_error, 0);
  for (int code = 0; code < 256; ++code) {
    EXPECT_EQ(F8E4M3ToFloat(codes[code]), weights[code]) << code;
  }
}

TEST(QuantizeF8Block, TakesTheNearestCode) {
  std::vector<float> weights = Normals(64 * 40, 5);
  for (size_t i = 0; i < weights.size(); i += 3) weights[i] *= 0x1p-12f;  // subnormal codes
  std::vector<uint8_t> codes(weights.size());
  float scale = 0;
  QuantizeF8Block(weights.data(), 40, 64, 40, codes.data(), 40, &scale);
  for (size_t i = 0; i < weights.size(); ++i) {
    const float x = weights[i] * (1 / scale);
    float least = INFINITY;
    for (int code = 0; code < 255; ++code) {
      if ((code & 0x7f) != 0x7f) least = std::min(least, std::fabs(F8E4M3ToFloat(code) - x));
    }
    EXPECT_EQ(std::fabs(F8E4M3ToFloat(codes[i]) - x), least) << x;
  }
}

// ---- checkpoints ----

// Widths that groups of 32 divide but for intermediate_size; two MTP modules; ragged against 128 x 128.
constexpr char kConfig[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 100, "hidden_size": 160, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 200, "moe_intermediate_size": 64,
  "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
  "routed_scaling_factor": 2.5, "num_attention_heads": 4, "q_lora_rank": 64, "kv_lora_rank": 32,
  "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 24, "max_position_embeddings": 512,
  "bos_token_id": 0, "eos_token_id": 1, "an_unknown_field": {"kept": true}})";

class QuantizeCheckpointTest : public ::testing::Test {
 protected:
  QuantizeCheckpointTest() {
    const std::string dir = MakeTestDir("in");
    WriteFile(dir + "/config.json", kConfig);
    EXPECT_TRUE(
        WriteRandomCheckpoint({.config_json = dir + "/config.json", .out_dir = dir + "/model", .seed = 3})
            .ok());
    options_ = {.in_dir = dir + "/model", .out_dir = dir + "/out", .threads = 2, .max_shard_bytes = 150'000};
    WriteFile(options_.in_dir + "/tokenizer.json", "{}");
  }

  // The unpacked values of a tensor.
  static std::vector<float> Values(const std::string& dir, const ModelConfig& config,
                                   const std::string& name) {
    const auto checkpoint = Checkpoint::Open(dir);
    const ModelDescription description = DescribeModel(config, config.num_nextn_predict_layers);
    for (const TensorSpec& spec : description.tensors) {
      if (spec.name != name) continue;
      auto tensor = ReadTensor(*checkpoint, description, spec);
      EXPECT_TRUE(tensor.ok()) << tensor.status();
      return ToFloats(ToBf16(*std::move(tensor)));
    }
    ADD_FAILURE() << name;
    return {};
  }

  static std::string Text(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }

  QuantizeOptions options_;
};

TEST_F(QuantizeCheckpointTest, WritesACheckpointWhoseTensorsAreNearTheOriginals) {
  const ModelConfig original = *ReadModelConfig(options_.in_dir + "/config.json");
  // Int4: a step of largest / 7 at four root mean squares, uniformly distributed: 4 / 7 / sqrt(12). E4M3:
  // 2^-4 at most, uniformly distributed, between half and all of it. E2M1: 1/4 at most, uniformly
  // distributed.
  const struct {
    WeightFormat format;
    double error;
    size_t tensors;
  } cases[] = {{kInt4Format, 0.165, 30}, {kFp8Format, 0.036, 30}, {kNvfp4Format, 0.144, 28}};
  for (const auto& c : cases) {
    SCOPED_TRACE(NameOf(c.format));
    options_.format = c.format;
    options_.out_dir += "x";
    int64_t last_done = 0, last_total = 0;
    const auto report = QuantizeCheckpoint(options_, [&](int64_t done, int64_t total) {
      EXPECT_GT(done, last_done);
      last_done = done;
      last_total = total;
    });
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(last_done, last_total);
    EXPECT_GT(report->written.shard_count, 2);
    const auto config = ReadModelConfig(options_.out_dir + "/config.json");
    ASSERT_TRUE(config.ok()) << config.status();
    const auto checkpoint = Checkpoint::Open(options_.out_dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    ASSERT_EQ(CheckTensors(*checkpoint, DescribeModel(*config, 2)), absl::OkStatus());
    ASSERT_GT(report->tensors.size(), c.tensors);
    for (const QuantizedTensor& tensor : report->tensors) {
      const std::vector<float> before = Values(options_.in_dir, original, tensor.name);
      const std::vector<float> after = Values(options_.out_dir, *config, tensor.name);
      ASSERT_EQ(before.size(), after.size());
      double squares = 0, error = 0;
      for (size_t i = 0; i < before.size(); ++i) {
        squares += before[i] * before[i];
        error += (before[i] - after[i]) * (before[i] - after[i]);
      }
      const double relative = std::sqrt(error / squares);
      EXPECT_LT(relative, c.error) << tensor.name;
      EXPECT_NEAR(relative, tensor.error.relative(), 0.004)
          << tensor.name;  // values read were rounded to BF16
    }
  }
}

// As NVIDIA's: MLP projections of the target; gate and up of an expert share their tensor scale, which is the
// largest magnitude of both over 6 * 448.
TEST_F(QuantizeCheckpointTest, WritesNvfp4AsModeloptDoes) {
  options_.format = kNvfp4Format;
  ASSERT_TRUE(QuantizeCheckpoint(options_, nullptr).ok());
  const ModelConfig original = *ReadModelConfig(options_.in_dir + "/config.json");
  const auto written = Checkpoint::Open(options_.out_dir);
  ASSERT_TRUE(written.ok()) << written.status();
  const auto scale_of = [&](const std::string& name) {
    const TensorLocation tensor = written->Find(name + "_scale_2");
    float scale = 0;
    EXPECT_TRUE(tensor.file->Read(*tensor.entry, 0, sizeof(scale), &scale).ok());
    return scale;
  };
  const auto largest_of = [&](const std::string& name) {
    float largest = 0;
    for (const float x : Values(options_.in_dir, original, name)) largest = std::max(largest, std::fabs(x));
    return largest;
  };
  const std::string expert = "model.layers.1.mlp.experts.3.";
  const std::string gate = expert + "gate_proj.weight", up = expert + "up_proj.weight";
  EXPECT_EQ(scale_of(gate), std::max(largest_of(gate), largest_of(up)) / (6 * 448));
  EXPECT_EQ(scale_of(up), scale_of(gate));
  EXPECT_EQ(scale_of(expert + "down_proj.weight"), largest_of(expert + "down_proj.weight") / (6 * 448));
  for (const char* name :
       {"model.layers.1.self_attn.o_proj.weight", "model.layers.2.mlp.experts.3.up_proj.weight",
        "model.layers.0.mlp.down_proj.weight"}) {
    EXPECT_EQ(written->Find(name).entry->dtype, "BF16") << name;
  }
  const auto config = nlohmann::json::parse(Text(options_.out_dir + "/config.json"));
  EXPECT_EQ(config["quantization_config"]["quant_algo"], "W4A16_NVFP4");
  // Scales of inputs need rows of a running model, which quantising does not have.
  EXPECT_EQ(written->Find(expert + "down_proj.input_scale").entry, nullptr);
}

TEST_F(QuantizeCheckpointTest, LeavesTheRestAsItIs) {
  const auto report = QuantizeCheckpoint(options_, nullptr);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto before = Checkpoint::Open(options_.in_dir);
  const auto after = Checkpoint::Open(options_.out_dir);
  int copied = 0, packed = 0;
  for (const TensorLocation& tensor : before->tensors()) {
    const TensorLocation same = after->Find(tensor.entry->name);
    if (same.entry == nullptr) {
      EXPECT_NE(after->Find(tensor.entry->name + "_packed").entry, nullptr) << tensor.entry->name;
      ++packed;
      continue;
    }
    ASSERT_EQ(same.entry->dtype, tensor.entry->dtype);
    std::string a(tensor.entry->bytes, '\0'), b(tensor.entry->bytes, '\1');
    ASSERT_TRUE(tensor.file->Read(*tensor.entry, 0, tensor.entry->bytes, a.data()).ok());
    ASSERT_TRUE(same.file->Read(*same.entry, 0, same.entry->bytes, b.data()).ok());
    EXPECT_EQ(a, b) << tensor.entry->name;
    ++copied;
  }
  EXPECT_EQ(packed, static_cast<int>(report->tensors.size()));
  EXPECT_GT(copied, 30);
  const std::string layer = "model.layers.3.";  // the second MTP module
  for (const char* name : {"mlp.gate.weight", "self_attn.kv_b_proj.weight", "eh_proj.weight"}) {
    EXPECT_NE(after->Find(layer + name).entry, nullptr) << name;
  }
  for (const char* name : {"self_attn.o_proj.weight_packed", "mlp.experts.7.up_proj.weight_packed",
                           "mlp.experts.7.down_proj.weight_packed"}) {
    EXPECT_NE(after->Find(layer + name).entry, nullptr) << name;
  }
  const auto config = nlohmann::json::parse(Text(options_.out_dir + "/config.json"));
  EXPECT_EQ(config["an_unknown_field"]["kept"], true);
  const std::vector<std::string> ignore = config["quantization_config"]["ignore"];
  EXPECT_THAT(ignore, ::testing::IsSupersetOf({"lm_head", "model.layers.3.eh_proj",
                                               "model.layers.0.self_attn.kv_b_proj",
                                               "model.layers.1.mlp.gate", "model.layers.0.mlp.down_proj"}));
  EXPECT_THAT(ignore, ::testing::Not(::testing::Contains("model.layers.0.self_attn.o_proj")));
  EXPECT_EQ(Text(options_.out_dir + "/tokenizer.json"), "{}");
  EXPECT_THAT(Text(options_.out_dir + "/" + kQuantizationReportFile),
              HasSubstr("model.layers.3.self_attn.o_proj.weight\t15360\t"));
}

TEST_F(QuantizeCheckpointTest, ThreadsAndShardsDoNotChangeBytes) {
  QuantizeOptions other = options_;
  other.out_dir += "-other";
  other.threads = 1;
  ASSERT_TRUE(QuantizeCheckpoint(options_, nullptr).ok());
  ASSERT_TRUE(QuantizeCheckpoint(other, nullptr).ok());
  for (const auto& entry : std::filesystem::directory_iterator(options_.out_dir)) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(Text(entry.path().string()), Text(other.out_dir + "/" + name)) << name;
  }
}

TEST_F(QuantizeCheckpointTest, TakesModulesFromAFileOfTheirOwn) {
  options_.in_dir = "tests/golden/checkpoints/joyai_llm_flash";
  options_.format = kFp8Format;
  ASSERT_TRUE(QuantizeCheckpoint(options_, nullptr).ok());
  const ModelConfig config = *ReadModelConfig(options_.out_dir + "/config.json");
  const auto written = Checkpoint::Open(options_.out_dir, config.mtp_file);
  ASSERT_TRUE(written.ok()) << written.status();
  const absl::StatusOr<int> modules = CheckCheckpoint(*written, config);
  ASSERT_TRUE(modules.ok()) << modules.status();
  EXPECT_EQ(*modules, 1);
}

TEST_F(QuantizeCheckpointTest, LeavesModulesThatAreNotDeclaredAsTheyAre) {
  nlohmann::json json = nlohmann::json::parse(Text(options_.in_dir + "/config.json"));
  json["num_nextn_predict_layers"] = 0;
  WriteFile(options_.in_dir + "/config.json", json.dump());
  ASSERT_TRUE(QuantizeCheckpoint(options_, nullptr).ok());
  const ModelConfig config = *ReadModelConfig(options_.out_dir + "/config.json");
  const absl::StatusOr<int> modules = CheckCheckpoint(*Checkpoint::Open(options_.out_dir), config);
  ASSERT_TRUE(modules.ok()) << modules.status();
  EXPECT_EQ(*modules, 0);
}

TEST_F(QuantizeCheckpointTest, RefusesNamingWhatIsWrong) {
  ASSERT_TRUE(QuantizeCheckpoint(options_, nullptr).ok());
  EXPECT_THAT(std::string(QuantizeCheckpoint(options_, nullptr).status().message()),
              HasSubstr("out: the directory is not empty; quantize overwrites nothing"));
  QuantizeOptions again = options_;
  again.in_dir = options_.out_dir;
  again.out_dir += "-again";
  EXPECT_THAT(std::string(QuantizeCheckpoint(again, nullptr).status().message()),
              HasSubstr("quantization_config: the checkpoint is quantised already, allowed BF16"));

  const std::string dir = MakeTestDir("infinite");
  ModelConfig config = TinyConfig();
  config.hidden_size = 64;
  config.moe_intermediate_size = 32;
  std::vector<RawTensor> tensors = TensorsFor(config);
  Named(tensors, "model.layers.1.mlp.experts.2.up_proj.weight")
      .bytes.replace(4 * 65, 4, std::string("\0\0\x80\x7f", 4));
  WriteSafetensors(dir + "/model.safetensors", tensors);
  nlohmann::json json = nlohmann::json::parse(kConfig);
  for (const auto& [field, value] :
       std::initializer_list<std::pair<const char*, int>>{{"vocab_size", 12},
                                                          {"hidden_size", 64},
                                                          {"intermediate_size", 10},
                                                          {"moe_intermediate_size", 32},
                                                          {"n_routed_experts", 4},
                                                          {"n_group", 2},
                                                          {"topk_group", 1},
                                                          {"num_attention_heads", 2},
                                                          {"q_lora_rank", 4},
                                                          {"kv_lora_rank", 6},
                                                          {"qk_nope_head_dim", 4},
                                                          {"qk_rope_head_dim", 2},
                                                          {"v_head_dim", 3}}) {
    json[field] = value;
  }
  WriteFile(dir + "/config.json", json.dump());
  QuantizeOptions infinite{.in_dir = dir, .out_dir = dir + "/out"};
  EXPECT_THAT(
      std::string(QuantizeCheckpoint(infinite, nullptr).status().message()),
      HasSubstr("tensor model.layers.1.mlp.experts.2.up_proj.weight: element [1, 1]: NaN or infinite"));
  EXPECT_FALSE(std::filesystem::exists(dir + "/out/config.json"));
}

TEST_F(QuantizeCheckpointTest, RefusesExpertsThatAGroupPacksInPart) {
  const std::string config = options_.in_dir + "/config.json";
  options_.format = Int4Format(128);  // divides neither 160 nor 64
  EXPECT_EQ(QuantizeCheckpoint(options_, nullptr).status(),
            absl::InvalidArgumentError(
                config + ": hidden_size: 160, allowed multiples of the group, 128: no other program reads "
                         "experts of which some projections are packed; groups that fit: 32"));
  EXPECT_FALSE(std::filesystem::exists(options_.out_dir));

  const std::string dir = MakeTestDir("narrow");
  nlohmann::json json = nlohmann::json::parse(kConfig);
  json["moe_intermediate_size"] = 40;
  WriteFile(dir + "/config.json", json.dump());
  ASSERT_TRUE(
      WriteRandomCheckpoint({.config_json = dir + "/config.json", .out_dir = dir + "/model", .seed = 3})
          .ok());
  QuantizeOptions narrow{.in_dir = dir + "/model", .out_dir = dir + "/out"};
  EXPECT_EQ(QuantizeCheckpoint(narrow, nullptr).status(),
            absl::InvalidArgumentError(
                dir + "/model/config.json: moe_intermediate_size: 40, allowed multiples of the group, 32: no "
                      "other program reads experts of which some projections are packed; no group fits, "
                      "quantize to fp8"));
  narrow.format = kFp8Format;
  EXPECT_TRUE(QuantizeCheckpoint(narrow, nullptr).ok());
}

}  // namespace
}  // namespace foredraft
