#include "tools/synth/synth.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/checkpoint/checkpoint.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/generation_config.h"
#include "engine/model_weights.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/checkpoint_files.h"
#include "tests/engine/checkpoint/fake_device.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;

// Ragged in every direction against 128 x 128 blocks; experts in groups, two MTP modules.
constexpr char kConfig[] = R"({
  "architectures": ["DeepseekV3ForCausalLM"], "vocab_size": 300, "hidden_size": 200, "num_hidden_layers": 2,
  "num_nextn_predict_layers": 2, "first_k_dense_replace": 1, "intermediate_size": 300, "moe_intermediate_size": 70,
  "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 4, "topk_group": 2,
  "routed_scaling_factor": 2.5, "num_attention_heads": 4, "q_lora_rank": 48, "kv_lora_rank": 32,
  "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20, "max_position_embeddings": 512,
  "bos_token_id": 0, "eos_token_id": [1, 2]})";

RandomCheckpointOptions Options(const std::string& name) {
  const std::string dir = MakeTestDir(name);
  WriteFile(dir + "/config.json", kConfig);
  return {.config_json = dir + "/config.json", .out_dir = dir + "/out", .seed = 7};
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

class SynthTest : public ::testing::TestWithParam<NamedFormat> {};

TEST_P(SynthTest, WritesACheckpointThatLoads) {
  RandomCheckpointOptions options = Options("load");
  options.projections = GetParam().format;
  if (Is4Bit(GetParam().format)) {  // down has 320 columns, groups of 32
    std::string text = kConfig;
    text.replace(text.find("\"intermediate_size\": 300"), 24, "\"intermediate_size\": 320");
    WriteFile(options.config_json, text);
  }
  const auto report = WriteRandomCheckpoint(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto config = ReadModelConfig(options.out_dir + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->projections, GetParam().format);
  FakeDevice device;
  FakeStream stream;
  const auto weights = As<V3Weights>(LoadWeights(options.out_dir, *config, 2, device, stream, nullptr));
  ASSERT_TRUE(weights.ok()) << weights.status();
  // Projections preserve the scale of their inputs.
  const PackedWeight& down = weights->layers[0].mlp.down;
  double squares = 0;
  for (int row = 0; row < down.n; ++row)
    for (int column = 0; column < down.k; ++column) squares += std::pow(FakeDevice::At(down, row, column), 2);
  EXPECT_NEAR(squares / down.n, 1.0 / 4, 0.02) << "rows of down, over 2 layers";
  EXPECT_EQ(down.format, WithWideScales(GetParam().format));
}

INSTANTIATE_TEST_SUITE_P(Formats, SynthTest, ::testing::ValuesIn(kNamedFormats),
                         [](const auto& info) { return info.param.name; });

// Kimi-K2.5's form: the config.json of a text model in another one, and a prefix in front of all names.
TEST(Synth, KeepsTheFormOfANestedTextModel) {
  RandomCheckpointOptions options = Options("nested");
  nlohmann::json text = nlohmann::json::parse(kConfig);
  text.update({{"first_k_dense_replace", 1}, {"norm_topk_prob", true}, {"num_nextn_predict_layers", 0}});
  text["quantization_config"] = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  const nlohmann::json outer = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                                {"model_type", "kimi_k25"},
                                {"eos_token_id", 3},
                                {"vision_config", {{"patch_size", 14}}},
                                {"quantization_config", text["quantization_config"]},
                                {"text_config", text}};
  WriteFile(options.config_json, outer.dump());
  options.projections = kFp8Format;
  ASSERT_TRUE(WriteRandomCheckpoint(options).ok());
  const auto written = nlohmann::json::parse(ReadText(options.out_dir + "/config.json"));
  EXPECT_FALSE(written.contains("quantization_config"));
  EXPECT_EQ(written["text_config"]["quantization_config"]["quant_method"], "fp8");
  EXPECT_EQ(written["vision_config"], outer["vision_config"]);
  const auto summary = SummarizeCheckpoint(options.out_dir);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->config.projections, kFp8Format);
  EXPECT_THAT(summary->config.eos_token_ids, ::testing::ElementsAre(3));
  EXPECT_EQ(summary->unread_bytes, 0);
  const auto checkpoint = Checkpoint::Open(options.out_dir);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(static_cast<int64_t>(checkpoint->tensors().size()), summary->tensor_count);
  for (const TensorLocation& tensor : checkpoint->tensors()) {
    EXPECT_TRUE(tensor.entry->name.starts_with("language_model.")) << tensor.entry->name;
  }
}

// As in NVIDIA's files: beside every NVFP4 weight.
TEST(Synth, Nvfp4HasScalesOfInputs) {
  RandomCheckpointOptions options = Options("inputs");
  options.projections = kNvfp4Format;
  std::string text = kConfig;
  text.replace(text.find("\"hidden_size\": 200"), 18, "\"hidden_size\": 192");
  text.replace(text.find("\"moe_intermediate_size\": 70"), 27, "\"moe_intermediate_size\": 64");
  WriteFile(options.config_json, text);
  ASSERT_TRUE(WriteRandomCheckpoint(options).ok());
  auto config = ReadModelConfig(options.out_dir + "/config.json");
  ASSERT_TRUE(config.ok()) << config.status();
  config->nvfp4_inputs = true;
  FakeDevice device;
  FakeStream stream;
  const auto weights = As<V3Weights>(LoadWeights(options.out_dir, *config, 2, device, stream, nullptr));
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_TRUE(weights->layers[1].moe.gate_up_inputs.alike);
  EXPECT_EQ(weights->layers[1].moe.down_inputs.values[7], kRandomInputScale);
  const auto summary = SummarizeCheckpoint(options.out_dir);
  ASSERT_TRUE(summary.ok()) << summary.status();
  EXPECT_EQ(summary->input_scale_count, 8 * 3 + 3 + 2) << "experts, the shared one, gate and up of layer 0";
}

TEST(Synth, SaysHowMuchIsWritten) {
  std::vector<int64_t> done;
  int64_t total = 0;
  const auto report =
      WriteRandomCheckpoint(Options("progress"), [&](int64_t done_bytes, int64_t total_bytes) {
        done.push_back(done_bytes);
        total = total_bytes;
      });
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(std::ssize(done), report->tensor_count);
  EXPECT_TRUE(std::is_sorted(done.begin(), done.end()));
  EXPECT_EQ(done.back(), report->bytes);
  EXPECT_EQ(total, report->bytes);
}

TEST(Synth, ShardsHoldTheSameTensors) {
  const RandomCheckpointOptions whole = Options("whole");
  RandomCheckpointOptions cut = Options("cut");
  cut.max_shard_bytes = 200'000;
  const auto whole_report = WriteRandomCheckpoint(whole);
  const auto cut_report = WriteRandomCheckpoint(cut);
  ASSERT_TRUE(whole_report.ok() && cut_report.ok());
  EXPECT_EQ(whole_report->shard_count, 1);
  EXPECT_GT(cut_report->shard_count, 5);
  EXPECT_EQ(cut_report->bytes, whole_report->bytes);
  const auto one = Checkpoint::Open(whole.out_dir);
  const auto many = Checkpoint::Open(cut.out_dir);
  ASSERT_TRUE(one.ok() && many.ok()) << many.status();
  ASSERT_EQ(one->tensors().size(), many->tensors().size());
  for (const TensorLocation& tensor : one->tensors()) {
    const TensorLocation other = many->Find(tensor.entry->name);
    ASSERT_NE(other.entry, nullptr) << tensor.entry->name;
    std::string a(tensor.entry->bytes, '\0');
    std::string b(tensor.entry->bytes, '\0');
    ASSERT_TRUE(tensor.file->Read(*tensor.entry, 0, tensor.entry->bytes, a.data()).ok());
    ASSERT_TRUE(other.file->Read(*other.entry, 0, other.entry->bytes, b.data()).ok());
    ASSERT_EQ(a, b) << tensor.entry->name;
  }
}

TEST(Synth, TheSeedDecidesTheBytes) {
  const RandomCheckpointOptions first = Options("first");
  const RandomCheckpointOptions again = Options("again");
  RandomCheckpointOptions other = Options("other");
  other.seed = 8;
  for (const RandomCheckpointOptions& options : {first, again, other})
    ASSERT_TRUE(WriteRandomCheckpoint(options).ok());
  const std::string bytes = ReadText(first.out_dir + "/model.safetensors");
  EXPECT_EQ(bytes, ReadText(again.out_dir + "/model.safetensors"));
  EXPECT_NE(bytes, ReadText(other.out_dir + "/model.safetensors"));
}

TEST(Synth, DefaultsToGreedyAndTheModelsEos) {
  const RandomCheckpointOptions options = Options("generation");
  ASSERT_TRUE(WriteRandomCheckpoint(options).ok());
  const auto generation = ReadGenerationConfig(options.out_dir + "/generation_config.json");
  ASSERT_TRUE(generation.ok()) << generation.status();
  EXPECT_EQ(generation->temperature, 0);
  EXPECT_THAT(generation->eos_token_ids, ::testing::ElementsAre(1, 2));
}

TEST(Synth, NeverOverwrites) {
  const RandomCheckpointOptions options = Options("twice");
  ASSERT_TRUE(WriteRandomCheckpoint(options).ok());
  const absl::Status status = WriteRandomCheckpoint(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/out: the directory is not empty"));
}

TEST(Synth, RefusesOtherArchitectures) {
  const RandomCheckpointOptions options = Options("refused");
  WriteFile(options.config_json, R"({"architectures": ["Other"]})");
  EXPECT_THAT(std::string(WriteRandomCheckpoint(options).status().message()),
              HasSubstr("architectures: [\"Other\"], allowed DeepseekV3ForCausalLM"));
  EXPECT_FALSE(std::filesystem::exists(options.out_dir));
}

TEST(CheckpointSummary, CountsParametersAndBytes) {
  const RandomCheckpointOptions options = Options("summary");
  const auto report = WriteRandomCheckpoint(options);
  ASSERT_TRUE(report.ok()) << report.status();
  const auto summary = SummarizeCheckpoint(options.out_dir);
  ASSERT_TRUE(summary.ok()) << summary.status();
  const int64_t attention = 48 * 200 + 48 + 4 * 40 * 48 + 48 * 200 + 32 + 4 * 44 * 32 + 200 * 80;
  const int64_t expert = 3 * 70 * 200;
  const int64_t moe = 8 * 200 + 8 + 9 * expert;
  const int64_t norms = 2 * 200;
  EXPECT_EQ(summary->parameters, 2 * 300 * 200 + 200 + 2 * (attention + norms) + 3 * 300 * 200 + moe);
  EXPECT_EQ(summary->active_parameters, summary->parameters - 6 * expert);
  EXPECT_EQ(summary->mtp_parameters, 2 * (attention + norms + moe + 3 * 200 + 200 * 400));
  EXPECT_EQ(summary->tensor_count, report->tensor_count);
  EXPECT_EQ(summary->bytes, report->bytes);
  EXPECT_EQ(summary->dtype_bytes.at("F32"), 3 * 8 * 4) << "the routers' biases";
  EXPECT_EQ(summary->kv_bytes_per_token, 2 * 48 * 2);
  EXPECT_EQ(summary->kv_bytes_per_token_of_module, 48 * 2);
  // 32 codes, a scale and 16 values of BF16, each padded to 16 bytes.
  EXPECT_EQ(summary->fp8_kv_bytes_per_token, 2 * 80);
  EXPECT_EQ(summary->fp8_kv_bytes_per_token_of_module, 80);
}

TEST(CheckpointSummary, RefusesWhatLoadingWouldRefuse) {
  const RandomCheckpointOptions options = Options("broken");
  ASSERT_TRUE(WriteRandomCheckpoint(options).ok());
  std::string config = ReadText(options.out_dir + "/config.json");
  config.replace(config.find("\"num_hidden_layers\": 2"), 22, "\"num_hidden_layers\": 9");
  WriteFile(options.out_dir + "/config.json", config);
  EXPECT_THAT(std::string(SummarizeCheckpoint(options.out_dir).status().message()), HasSubstr("missing"));
}

}  // namespace
}  // namespace foredraft
