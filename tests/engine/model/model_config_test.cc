#include "engine/model/model_config.h"

#include <cmath>
#include <fstream>

#include "config/json_text.h"
#include "engine/kinds/read_model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// DeepSeek-R1's config.json (docs/deepseek-v3.md section 1).
json R1() {
  return json::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "vocab_size": 129280,
    "hidden_size": 7168, "num_hidden_layers": 61, "num_nextn_predict_layers": 1, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "intermediate_size": 18432, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 8, "n_shared_experts": 1, "n_group": 8, "topk_group": 4, "scoring_func": "sigmoid",
    "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
    "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 10000, "hidden_act": "silu", "max_position_embeddings": 163840, "attention_bias": false,
    "rope_scaling": {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32,
                     "beta_slow": 1, "mscale": 1.0, "mscale_all_dim": 1.0},
    "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "seq_aux": true,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]}})");
}

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "config.json");
}

ModelConfig ParseOrDie(const json& config) {
  absl::StatusOr<ModelConfig> parsed = Parse(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ModelConfig{};
}

TEST(ModelConfig, ReadsR1) {
  const ModelConfig config = ParseOrDie(R1());
  EXPECT_EQ(config.vocab_size, 129280);
  EXPECT_EQ(config.hidden_size, 7168);
  EXPECT_EQ(config.num_hidden_layers, 61);
  EXPECT_EQ(config.num_nextn_predict_layers, 1);
  EXPECT_EQ(config.intermediate_size, 18432);
  EXPECT_EQ(config.moe_intermediate_size, 2048);
  EXPECT_EQ(config.n_routed_experts, 256);
  EXPECT_EQ(config.num_experts_per_tok, 8);
  EXPECT_EQ(config.n_group, 8);
  EXPECT_EQ(config.topk_group, 4);
  EXPECT_EQ(config.routed_scaling_factor, 2.5);
  EXPECT_EQ(config.q_lora_rank, 1536);
  EXPECT_EQ(config.qk_head_dim(), 192);
  EXPECT_EQ(config.max_position_embeddings, 163840);
  EXPECT_EQ(config.bos_token_id, 0);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(1));
  EXPECT_EQ(config.projections, kFp8Format);
  EXPECT_FALSE(config.IsMoe(2));
  EXPECT_TRUE(config.IsMoe(3));
  EXPECT_TRUE(config.IsMoe(61));
}

std::vector<double> FrequenciesOf(const ModelConfig& config) {
  return RopeFrequencies(config.qk_rope_head_dim, config.rope_theta, config.rope_scaling);
}

TEST(ModelConfig, YarnHasTheGoldenValues) {
  const ModelConfig config = ParseOrDie(R1());
  EXPECT_NEAR(AttentionScale(config.qk_head_dim(), config.rope_scaling), 0.1352337789, 1e-9);
  EXPECT_DOUBLE_EQ(RopeMscale(config.rope_scaling), 1.0);
  const std::vector<double> frequencies = FrequenciesOf(config);
  ASSERT_EQ(frequencies.size(), 32u);
  const std::pair<int, double> golden[] = {{0, 1.0},           {10, 0.0562341325},  {11, 0.0390069266},
                                           {16, 0.0055},       {22, 1.77827941e-4}, {23, 3.33380358e-5},
                                           {31, 3.33380358e-6}};
  for (const auto& [index, value] : golden) EXPECT_NEAR(frequencies[index], value, value * 1e-8) << index;
}

TEST(ModelConfig, WithoutScalingRopeIsPlain) {
  json config = R1();
  config["rope_scaling"] = nullptr;
  const ModelConfig plain = ParseOrDie(config);
  EXPECT_NEAR(AttentionScale(plain.qk_head_dim(), plain.rope_scaling), 0.0721687836, 1e-9);
  EXPECT_NEAR(FrequenciesOf(plain)[31], std::pow(10000, -62.0 / 64), 1e-12);
}

TEST(ModelConfig, YarnWithoutMscalesScalesTheRotation) {
  json config = R1();
  config["rope_scaling"].erase("mscale");
  config["rope_scaling"].erase("mscale_all_dim");
  const ModelConfig yarn = ParseOrDie(config);
  EXPECT_NEAR(RopeMscale(yarn.rope_scaling), 1.3688879454, 1e-9);
  EXPECT_NEAR(AttentionScale(yarn.qk_head_dim(), yarn.rope_scaling), 0.0721687836, 1e-9);
}

// mscale 1 is what DeepSeek's code gives an absent one, and transformers takes 0.1 ln(factor) + 1 without
// mscale_all_dim.
TEST(ModelConfig, YarnWithMscale1AndNoMscaleAllDimIsYarnWithoutMscales) {
  json config = R1();
  config["rope_scaling"].erase("mscale_all_dim");
  EXPECT_NEAR(RopeMscale(ParseOrDie(config).rope_scaling), 1.3688879454, 1e-9);
  config["rope_scaling"].erase("mscale");
  config["rope_scaling"]["mscale_all_dim"] = 0;
  EXPECT_NEAR(RopeMscale(ParseOrDie(config).rope_scaling), 1.3688879454, 1e-9);
}

TEST(ModelConfig, AcceptsRopeParametersOfTransformers5) {
  json config = R1();
  config["rope_parameters"] = config["rope_scaling"];
  config.erase("rope_scaling");
  config.erase("rope_theta");
  config["rope_parameters"].erase("type");
  config["rope_parameters"]["rope_type"] = "yarn";
  config["rope_parameters"]["rope_theta"] = 50000.0;
  const ModelConfig parsed = ParseOrDie(config);
  EXPECT_EQ(parsed.rope_theta, 50000);
  ASSERT_TRUE(parsed.rope_scaling.has_value());
  EXPECT_EQ(parsed.rope_scaling->factor, 40);

  config["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  const ModelConfig plain = ParseOrDie(config);
  EXPECT_EQ(plain.rope_theta, 1e6);
  EXPECT_FALSE(plain.rope_scaling.has_value());
}

TEST(ModelConfig, RopesThatAgreeAreRead) {
  json config = R1();
  config["rope_parameters"] = config["rope_scaling"];
  config["rope_parameters"]["rope_theta"] = 10000;
  const ModelConfig parsed = ParseOrDie(config);
  EXPECT_EQ(parsed.rope_theta, 10000);
  ASSERT_TRUE(parsed.rope_scaling.has_value());
  EXPECT_EQ(parsed.rope_scaling->factor, 40);
  // transformers 4 keeps the base beside rope_scaling.
  config.erase("rope_theta");
  config["rope_parameters"]["rope_theta"] = 50000;
  EXPECT_EQ(ParseOrDie(config).rope_theta, 50000);
}

TEST(ModelConfig, AbsentFieldsHaveTheClassDefaults) {
  json config = R1();
  for (const char* field : {"num_nextn_predict_layers", "num_key_value_heads", "scoring_func", "topk_method",
                            "hidden_act", "quantization_config", "model_type", "bos_token_id"}) {
    config.erase(field);
  }
  config["q_lora_rank"] = nullptr;
  config["eos_token_id"] = nullptr;
  const ModelConfig parsed = ParseOrDie(config);
  EXPECT_EQ(parsed.model_type, "deepseek_v3");
  EXPECT_EQ(parsed.num_nextn_predict_layers, 0);
  EXPECT_EQ(parsed.q_lora_rank, 0);
  EXPECT_EQ(parsed.projections, kBf16Format);
  EXPECT_EQ(parsed.bos_token_id, -1);
  EXPECT_THAT(parsed.eos_token_ids, IsEmpty());
}

// As Kimi-K2-Thinking has it.
json PackQuantizedConfig() {
  return {{"quant_method", "compressed-tensors"},
          {"format", "pack-quantized"},
          {"quantization_status", "compressed"},
          {"kv_cache_scheme", nullptr},
          {"ignore", {"lm_head", "re:.*self_attn.*"}},
          {"config_groups",
           {{"group_0",
             {{"input_activations", nullptr},
              {"output_activations", nullptr},
              {"targets", {"Linear"}},
              {"weights",
               {{"actorder", nullptr},
                {"block_structure", nullptr},
                {"dynamic", false},
                {"group_size", 32},
                {"num_bits", 4},
                {"observer", "minmax"},
                {"observer_kwargs", json::object()},
                {"strategy", "group"},
                {"symmetric", true},
                {"type", "int"}}}}}}}};
}

TEST(ModelConfig, AcceptsFourBitsOfCompressedTensors) {
  json config = R1();
  config["quantization_config"] = PackQuantizedConfig();
  const ModelConfig int4 = ParseOrDie(config);
  EXPECT_EQ(int4.projections, kInt4Format);
  json& quantization = config["quantization_config"];
  quantization["config_groups"]["group_0"]["weights"]["group_size"] = 128;
  EXPECT_EQ(ParseOrDie(config).projections, Int4Format(128));
  quantization["format"] = "mxfp4-pack-quantized";
  quantization["config_groups"]["group_0"]["weights"]["type"] = "float";
  quantization["config_groups"]["group_0"]["weights"]["group_size"] = 32;
  EXPECT_EQ(ParseOrDie(config).projections, kMxfp4Format);
}

TEST(ModelConfig, RefusesOtherFormatsOfCompressedTensorsByName) {
  const struct {
    json::json_pointer field;  // below quantization_config
    json value;
    const char* error;
  } cases[] = {
      {json::json_pointer("/format"), "int-quantized",
       R"(quantization_config.format: "int-quantized", allowed pack-quantized, mxfp4-pack-quantized, nvfp4-pack-quantized)"},
      {json::json_pointer("/config_groups/group_0/weights/num_bits"), 8,
       "quantization_config.config_groups.group_0.weights.num_bits: 8, allowed 4..4"},
      {json::json_pointer("/config_groups/group_0/weights/group_size"), 16,
       "group_size: 16, allowed 32, 64, 128"},
      {json::json_pointer("/config_groups/group_0/weights/symmetric"), false,
       "symmetric: false, allowed true"},
      {json::json_pointer("/config_groups/group_0/weights/strategy"), "channel",
       R"(strategy: "channel", allowed group)"},
      {json::json_pointer("/config_groups/group_0/weights/type"), "float", R"(type: "float", allowed int)"},
      {json::json_pointer("/config_groups/group_0/weights/actorder"), "group",
       R"(actorder: "group", allowed null, static, weight)"},
      {json::json_pointer("/config_groups/group_0/weights"), nullptr, "group_0.weights: missing"},
      {json::json_pointer("/config_groups/group_0/input_activations"),
       {{"num_bits", 8}},
       R"(group_0.input_activations: {"num_bits":8}, allowed null)"},
      {json::json_pointer("/config_groups"), json::object(),
       "config_groups: {}, allowed an object of groups"},
      {json::json_pointer("/kv_cache_scheme"), {{"num_bits", 8}}, "kv_cache_scheme: "},
      {json::json_pointer("/quantization_status"), "frozen",
       R"(quantization_status: "frozen", allowed compressed)"},
  };
  for (const auto& c : cases) {
    json config = R1();
    config["quantization_config"] = PackQuantizedConfig();
    config["quantization_config"][c.field] = c.value;
    const auto parsed = ParseModelConfig(config.dump(), "config.json");
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(c.error));
  }
  json config = R1();
  config["quantization_config"] = PackQuantizedConfig();
  json& groups = config["quantization_config"]["config_groups"];
  groups["group_1"] = groups["group_0"];
  groups["group_1"]["weights"]["group_size"] = 128;
  EXPECT_THAT(std::string(ParseModelConfig(config.dump(), "config.json").status().message()),
              HasSubstr("config_groups.group_1: group_size 128, allowed one size for all, 32"));
}

TEST(ModelConfig, RequiresFieldsForWhichTheFamilyHasNoDefault) {
  for (const char* field :
       {"routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob", "first_k_dense_replace",
        "n_shared_experts", "n_routed_experts", "q_lora_rank", "eos_token_id"}) {
    json config = R1();
    config["model_type"] = "kimi_k2";
    config.erase(field);
    EXPECT_THAT(std::string(Parse(config).status().message()),
                HasSubstr(std::string("config.json: ") + field + ": missing, allowed "))
        << field;
  }
}

// GLM-4.7-Flash's config.json.
json Glm47Flash() {
  return json::parse(R"({
    "architectures": ["Glm4MoeLiteForCausalLM"], "model_type": "glm4_moe_lite", "vocab_size": 154880,
    "hidden_size": 2048, "num_hidden_layers": 47, "num_nextn_predict_layers": 1, "first_k_dense_replace": 1,
    "intermediate_size": 10240, "moe_intermediate_size": 1536, "n_routed_experts": 64,
    "num_experts_per_tok": 4, "n_shared_experts": 1, "n_group": 1, "topk_group": 1, "topk_method": "noaux_tc",
    "norm_topk_prob": true, "routed_scaling_factor": 1.8, "num_attention_heads": 20,
    "num_key_value_heads": 20, "q_lora_rank": 768, "kv_lora_rank": 512, "qk_nope_head_dim": 192,
    "qk_rope_head_dim": 64, "v_head_dim": 256, "rms_norm_eps": 1e-5, "rope_theta": 1000000,
    "rope_scaling": null, "partial_rotary_factor": 1.0, "hidden_act": "silu", "attention_bias": false,
    "max_position_embeddings": 202752, "tie_word_embeddings": false, "pad_token_id": 154820,
    "eos_token_id": [154820, 154827, 154829]})");
}

TEST(ModelConfig, ReadsGlm47Flash) {
  const ModelConfig config = ParseOrDie(Glm47Flash());
  EXPECT_EQ(config.architecture, "Glm4MoeLiteForCausalLM");
  EXPECT_EQ(config.model_type, "glm4_moe_lite");
  EXPECT_EQ(config.rms_norm_eps, 1e-5);
  EXPECT_EQ(config.routed_scaling_factor, 1.8);
  EXPECT_EQ(config.rope_theta, 1e6);
  EXPECT_EQ(config.bos_token_id, -1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(154820, 154827, 154829));
  EXPECT_TRUE(config.IsMoe(47));
}

TEST(ModelConfig, AbsentFieldsHaveTheFamilysDefaults) {
  json config = Glm47Flash();
  for (const char* field :
       {"routed_scaling_factor", "n_group", "topk_group", "norm_topk_prob", "first_k_dense_replace",
        "n_shared_experts", "n_routed_experts", "q_lora_rank", "rms_norm_eps"}) {
    config.erase(field);
  }
  const ModelConfig parsed = ParseOrDie(config);
  EXPECT_EQ(parsed.routed_scaling_factor, 1.8);
  EXPECT_EQ(parsed.n_group, 1);
  EXPECT_EQ(parsed.n_routed_experts, 64);
  EXPECT_EQ(parsed.first_k_dense_replace, 1);
  EXPECT_EQ(parsed.q_lora_rank, 768);
  EXPECT_EQ(parsed.rms_norm_eps, 1e-5);
}

TEST(ModelConfig, LayerTypesCountTheDenseLayers) {
  json config = Glm47Flash();
  config.erase("first_k_dense_replace");
  config["num_hidden_layers"] = 3;
  config["mlp_layer_types"] = {"dense", "dense", "sparse"};
  EXPECT_EQ(ParseOrDie(config).first_k_dense_replace, 2);
  config["mlp_layer_types"] = {"dense", "sparse", "dense"};
  EXPECT_THAT(std::string(Parse(config).status().message()),
              HasSubstr(R"(mlp_layer_types: ["dense","sparse","dense"], allowed "dense" for the first)"));
  config["mlp_layer_types"] = {"dense", "sparse"};
  EXPECT_THAT(std::string(Parse(config).status().message()), HasSubstr("mlp_layer_types"));
  config["mlp_layer_types"] = {"dense", "dense", "sparse"};
  config["first_k_dense_replace"] = 1;
  EXPECT_THAT(std::string(Parse(config).status().message()),
              HasSubstr("first_k_dense_replace: 1, allowed 2..2"));
}

TEST(ModelConfig, JoyAIHasDenseMtpModulesInAFileOfTheirOwn) {
  json config = R1();
  config["model_type"] = "joyai_llm_flash";
  const ModelConfig joyai = ParseOrDie(config);
  EXPECT_TRUE(joyai.IsMoe(60));
  EXPECT_FALSE(joyai.IsMoe(61));
  EXPECT_EQ(joyai.mtp_file, "mtp-1-of-1.safetensors");
  config["model_type"] = "kimi_k2";
  EXPECT_TRUE(ParseOrDie(config).IsMoe(61));
  EXPECT_EQ(ParseOrDie(config).mtp_file, "");
}

TEST(ModelConfig, EosMayBeAList) {
  json config = R1();
  config["eos_token_id"] = {1, 128805};
  EXPECT_THAT(ParseOrDie(config).eos_token_ids, ElementsAre(1, 128805));
}

struct Refusal {
  const char* name;
  const char* patch;  // merged into R1's config (RFC 7396)
  const char* error;  // after "config.json: "
};

class ModelConfigRefuses : public ::testing::TestWithParam<Refusal> {};

TEST_P(ModelConfigRefuses, NamingFieldValueAndAllowed) {
  json config = R1();
  config.merge_patch(json::parse(GetParam().patch));
  if (config["num_hidden_layers"] == "drop") config.erase("num_hidden_layers");
  const absl::Status status = Parse(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("config.json: ") + GetParam().error));
}

const Refusal kRefusals[] = {
    {"Architecture", R"({"architectures": ["LlamaForCausalLM"]})",
     R"(architectures: ["LlamaForCausalLM"], allowed DeepseekV3ForCausalLM, DeepseekV32ForCausalLM, )"
     "Glm4MoeLiteForCausalLM, GlmMoeDsaForCausalLM"},
    {"NoArchitecture", R"({"architectures": null})", "architectures: missing, allowed DeepseekV3ForCausalLM"},
    {"ModelType", R"({"model_type": "deepseek_v32"})",
     R"(model_type: "deepseek_v32", allowed deepseek_v3, kimi_k2, joyai_llm_flash)"},
    {"ModelTypeNoText", R"({"model_type": 3})", "model_type: 3, allowed deepseek_v3"},
    {"DSpark", R"({"dspark_block_size": 5})",
     "dspark_block_size: 5, allowed MTP modules only: this checkpoint drafts with DSpark"},
    {"DSparkArchitecture", R"({"architectures": ["Glm5DSparkForCausalLM"]})",
     R"(architectures: ["Glm5DSparkForCausalLM"], allowed MTP modules only: this checkpoint drafts with DSpark)"},
    {"Eagle", R"({"eagle_config": {}})", "eagle_config: {}, allowed MTP modules only"},
    {"EagleOfTwoLines", R"({"eagle_\n": 1})", R"("eagle_\n": 1, allowed MTP modules only)"},
    {"PartialRotary", R"({"partial_rotary_factor": 0.5})", "partial_rotary_factor: 0.5, allowed 1..1"},
    {"ZeroVocab", R"({"vocab_size": 0})", "vocab_size: 0, allowed 1..4194304"},
    {"NegativeHidden", R"({"hidden_size": -7168})", "hidden_size: -7168, allowed 1..1048576"},
    {"MissingLayers", R"({"num_hidden_layers": "drop"})", "num_hidden_layers: missing, allowed 1..1024"},
    {"TextForNumber", R"({"kv_lora_rank": "512"})", R"(kv_lora_rank: "512", allowed 1..1048576)"},
    {"FractionForInt", R"({"n_group": 8.5})", "n_group: 8.5, allowed 1..4096"},
    {"HugeInt", R"({"hidden_size": 18446744073709551615})",
     "hidden_size: 18446744073709551615, allowed 1..1048576"},
    {"NumberForBool", R"({"norm_topk_prob": 1})", "norm_topk_prob: 1, allowed true, false"},
    {"Scoring", R"({"scoring_func": "softmax"})", R"(scoring_func: "softmax", allowed sigmoid)"},
    {"TopkMethod", R"({"topk_method": "group_limited_greedy"})",
     R"(topk_method: "group_limited_greedy", allowed noaux_tc)"},
    {"Activation", R"({"hidden_act": "gelu"})", R"(hidden_act: "gelu", allowed silu)"},
    {"KvHeads", R"({"num_key_value_heads": 8})", "num_key_value_heads: 8, allowed num_attention_heads, 128"},
    {"OddRope", R"({"qk_rope_head_dim": 63})", "qk_rope_head_dim: 63, allowed even numbers"},
    {"TooWide", R"({"num_attention_heads": 4096, "num_key_value_heads": 4096, "v_head_dim": 65536})",
     "num_attention_heads: 4096, allowed at most 16777216 features over all heads"},
    {"HalfSplitRope", R"({"rope_interleave": false})", "rope_interleave: false, allowed true"},
    {"RopeType", R"({"rope_scaling": {"type": "linear"}})",
     R"(rope_scaling.type: "linear", allowed yarn, default)"},
    {"RopeTypeMissing", R"({"rope_scaling": {"type": null}})",
     "rope_scaling.type: missing, allowed yarn, default"},
    {"RopeNotObject", R"({"rope_scaling": 2})", "rope_scaling: 2, allowed an object"},
    {"RopesThatContradict", R"({"rope_parameters": {"rope_type": "default"}})",
     "rope_scaling: says something else than rope_parameters, allowed the same in both, or one of them"},
    {"RopeBases", R"({"rope_scaling": {"rope_theta": 50000}})",
     "rope_scaling.rope_theta: 50000, allowed 10000, as rope_theta says beside it"},
    {"BasesOfTwoRopes",
     R"({"rope_theta": null, "rope_scaling": {"rope_theta": 20000}, "rope_parameters": {"rope_type": "yarn",
      "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
      "mscale_all_dim": 1.0, "rope_theta": 50000}})",
     "rope_scaling.rope_theta: 20000, allowed 50000, as rope_parameters says"},
    {"YarnFactor", R"({"rope_scaling": {"factor": 0.5}})", "rope_scaling.factor: 0.5, allowed 1..1e+06"},
    {"YarnContext", R"({"rope_scaling": {"original_max_position_embeddings": null}})",
     "rope_scaling.original_max_position_embeddings: missing"},
    {"YarnOneMscale", R"({"rope_scaling": {"mscale": 0.707, "mscale_all_dim": null}})",
     "rope_scaling.mscale: 0.707 with mscale_all_dim 0, allowed both above 0, or both absent"},
    {"YarnAbsentMscale", R"({"rope_scaling": {"mscale": null}})",
     "rope_scaling.mscale: absent with mscale_all_dim 1, allowed both above 0, or both absent"},
    {"YarnZeroMscale", R"({"rope_scaling": {"mscale": 0}})", "rope_scaling.mscale: 0 with mscale_all_dim 1"},
    {"YarnAttentionFactor", R"({"rope_scaling": {"attention_factor": 1.2}})",
     "rope_scaling.attention_factor: 1.2, allowed absent"},
    {"YarnTruncate", R"({"rope_scaling": {"truncate": false}})",
     "rope_scaling.truncate: false, allowed true"},
    {"GroupsDoNotDivide", R"({"n_group": 7})", "n_group: 7, allowed divisors of n_routed_experts, 256"},
    {"GroupsOfOne", R"({"n_group": 256})", "n_group: 256, allowed at most n_routed_experts / 2, 128"},
    {"TopkGroup", R"({"topk_group": 9})", "topk_group: 9, allowed 1..8"},
    {"AbsentTopkGroup", R"({"topk_group": null, "n_group": 2})",
     "topk_group: missing, which means 4, allowed 1..2"},
    {"TopkExperts", R"({"num_experts_per_tok": 129})", "num_experts_per_tok: 129, allowed 1..128"},
    {"QuantMethod", R"({"quantization_config": {"quant_method": "awq"}})",
     R"(quantization_config.quant_method: "awq", allowed fp8, compressed-tensors)"},
    {"QuantFormat", R"({"quantization_config": {"fmt": "e5m2"}})",
     R"(quantization_config.fmt: "e5m2", allowed e4m3)"},
    {"QuantStatic", R"({"quantization_config": {"activation_scheme": "static"}})",
     R"(quantization_config.activation_scheme: "static", allowed dynamic)"},
    {"QuantBlock", R"({"quantization_config": {"weight_block_size": [64, 64]}})",
     "quantization_config.weight_block_size: [64,64], allowed [128,128]"},
    {"QuantPerTensor", R"({"quantization_config": {"weight_block_size": null}})",
     "quantization_config.weight_block_size: missing, allowed [128,128]"},
    {"EosOutOfVocab", R"({"eos_token_id": [1, 129280]})", "eos_token_id: 129280, allowed ids 0..129279"},
    {"BosNegative", R"({"bos_token_id": -1})", "bos_token_id: -1, allowed ids 0..129279"},
};
INSTANTIATE_TEST_SUITE_P(Cases, ModelConfigRefuses, ::testing::ValuesIn(kRefusals),
                         [](const auto& info) { return info.param.name; });

struct BadJson {
  const char* name;
  std::string text;
  const char* error;
};

class ModelConfigRefusesText : public ::testing::TestWithParam<BadJson> {};

TEST_P(ModelConfigRefusesText, NamingTheFile) {
  const absl::Status status = ParseModelConfig(GetParam().text, "dir/config.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("dir/config.json: "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(
    Cases, ModelConfigRefusesText,
    ::testing::Values(BadJson{"Empty", "", "not JSON"}, BadJson{"Cut", "{\"vocab_size\": 3", "not JSON"},
                      BadJson{"NoUtf8", "{\"a\": \"\xff\"}", "not JSON"},
                      BadJson{"List", "[]", "not a JSON object"},
                      BadJson{"Twice", R"({"vocab_size": 3, "vocab_size": 4})",
                              R"(key "vocab_size" given twice)"},
                      BadJson{"Deep", std::string(100000, '['), "nested deeper than 64"}),
    [](const auto& info) { return info.param.name; });

TEST(ModelConfig, MissingFileIsNotFound) {
  const absl::Status status = ReadModelConfig("/nonexistent/config.json").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("/nonexistent/config.json"));
}

}  // namespace
}  // namespace foredraft
