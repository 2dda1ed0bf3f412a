// config.json of a text model that is nested in a multimodal one, as Kimi-K2.5's.

#include <string>

#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "engine/model/model_kind.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

json Int4() {
  return json::parse(R"({
    "quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed",
    "ignore": ["lm_head", "re:.*self_attn.*"], "kv_cache_scheme": null,
    "config_groups": {"group_0": {"targets": ["Linear"], "input_activations": null, "output_activations": null,
      "weights": {"num_bits": 4, "type": "int", "symmetric": true, "group_size": 32, "strategy": "group",
                  "dynamic": false, "actorder": null}}}})");
}

// Kimi-K2.5's published config.json.
json Kimi25() {
  json config = json::parse(R"({
    "architectures": ["KimiK25ForConditionalGeneration"], "model_type": "kimi_k25", "bos_token_id": 163584,
    "eos_token_id": 163585, "pad_token_id": 163839, "media_placeholder_token_id": 163605,
    "tie_word_embeddings": false, "vision_config": {"patch_size": 14, "vt_hidden_size": 1152},
    "text_config": {
      "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 163840,
      "hidden_size": 7168, "num_hidden_layers": 61, "num_nextn_predict_layers": 0, "first_k_dense_replace": 1,
      "moe_layer_freq": 1, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 384,
      "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 1, "topk_group": 1,
      "scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": true,
      "routed_scaling_factor": 2.827, "num_attention_heads": 64, "num_key_value_heads": 64,
      "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "v_head_dim": 128, "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "hidden_act": "silu",
      "max_position_embeddings": 262144, "attention_bias": false, "tie_word_embeddings": false,
      "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096,
                       "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0},
      "bos_token_id": 163584, "eos_token_id": 163585}})");
  config["text_config"]["quantization_config"] = Int4();
  return config;
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "config.json");
}

ModelConfig ParseOrDie(const json& config) {
  absl::StatusOr<ModelConfig> parsed = Parse(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ModelConfig{};
}

TEST(NestedConfig, ReadsKimi25) {
  const ModelConfig config = ParseOrDie(Kimi25());
  EXPECT_EQ(config.architecture, "KimiK25ForConditionalGeneration");
  EXPECT_EQ(config.model_type, "kimi_k25");
  EXPECT_EQ(config.vocab_size, 163840);
  EXPECT_EQ(config.num_hidden_layers, 61);
  EXPECT_EQ(config.n_routed_experts, 384);
  EXPECT_EQ(config.routed_scaling_factor, 2.827);
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.rope_scaling->factor, 64);
  EXPECT_EQ(config.max_position_embeddings, 262144);
  EXPECT_EQ(config.num_nextn_predict_layers, 0);
  EXPECT_EQ(config.projections, kInt4Format);
  EXPECT_EQ(config.bos_token_id, 163584);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(163585));
  EXPECT_EQ(config.tensor_prefix, "language_model.");
  EXPECT_EQ(config.kind->chat_format(config), "");
}

// K2.6 has another end and another model_type inside.
TEST(NestedConfig, IdsAreTheOuterObjectsElseTheTextModels) {
  json config = Kimi25();
  config["text_config"]["model_type"] = "kimi_k2";
  config["eos_token_id"] = 163586;
  EXPECT_THAT(ParseOrDie(config).eos_token_ids, ElementsAre(163586));
  config.erase("eos_token_id");
  config.erase("bos_token_id");
  EXPECT_THAT(ParseOrDie(config).eos_token_ids, ElementsAre(163585));
  EXPECT_EQ(ParseOrDie(config).bos_token_id, 163584);
  config["text_config"].erase("eos_token_id");
  EXPECT_THAT(std::string(Parse(config).status().message()),
              HasSubstr("config.json: text_config.eos_token_id: missing, allowed ids 0..163839"));
  config["eos_token_id"] = 163840;
  EXPECT_THAT(std::string(Parse(config).status().message()),
              HasSubstr("config.json: eos_token_id: 163840, allowed ids 0..163839"));
}

TEST(NestedConfig, QuantizationMayStandInEitherObjectOrTheSameInBoth) {
  json config = Kimi25();
  config["quantization_config"] = Int4();
  EXPECT_EQ(ParseOrDie(config).projections, kInt4Format);
  config["text_config"].erase("quantization_config");
  EXPECT_EQ(ParseOrDie(config).projections, kInt4Format);
  config.erase("quantization_config");
  EXPECT_EQ(ParseOrDie(config).projections, kBf16Format);
  config = Kimi25();
  config["quantization_config"] = Int4();
  config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = 64;
  EXPECT_THAT(
      std::string(Parse(config).status().message()),
      HasSubstr("config.json: text_config.quantization_config: says something else than config.json's own "
                "quantization_config, allowed the same in both, or one of them"));
}

TEST(NestedConfig, RefusesByThePathOfTheField) {
  const struct {
    const char* patch;  // merged into Kimi-K2.5's (RFC 7396)
    const char* error;  // after "config.json: "
  } cases[] = {
      {R"({"text_config": null})", "text_config: missing, allowed an object"},
      {R"({"text_config": 3})", "text_config: 3, allowed an object"},
      {R"({"text_config": {"hidden_size": -1}})", "text_config.hidden_size: -1, allowed 1..1048576"},
      {R"({"text_config": {"n_group": null}})", "text_config.n_group: missing, allowed 1..4096"},
      {R"({"text_config": {"model_type": "kimi_linear"}})",
       R"(text_config.model_type: "kimi_linear", allowed deepseek_v3, kimi_k2)"},
      {R"({"text_config": {"architectures": ["DeepseekV32ForCausalLM"]}})",
       R"(text_config.architectures: ["DeepseekV32ForCausalLM"], allowed DeepseekV3ForCausalLM)"},
      {R"({"text_config": {"rope_scaling": {"type": "linear"}}})",
       R"(text_config.rope_scaling.type: "linear", allowed yarn, default)"},
      {R"({"text_config": {"eagle_config": {}}})", "text_config.eagle_config: {}, allowed MTP modules only"},
      {R"({"text_config": {"quantization_config": {"format": "x"}}})",
       R"(text_config.quantization_config.format: "x", allowed pack-quantized)"},
      {R"({"tie_word_embeddings": true})",
       "tie_word_embeddings: true, allowed false, as the text model has it"},
      {R"({"model_type": "kimi_k3"})", R"(model_type: "kimi_k3", allowed kimi_k25)"},
  };
  for (const auto& c : cases) {
    json config = Kimi25();
    config.merge_patch(json::parse(c.patch));
    const absl::Status status = Parse(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << c.patch;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("config.json: ") + c.error)) << c.patch;
  }
}

}  // namespace
}  // namespace foredraft
