// DeepSeek-V4's config.json in both spellings (docs/deepseek-v4.md section 1).

#include <string>

#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// V4-Flash as DeepSeek ships it.
json Flash() {
  json config = json::parse(R"({
    "architectures": ["DeepseekV4ForCausalLM"], "model_type": "deepseek_v4", "vocab_size": 129280,
    "hidden_size": 4096, "num_hidden_layers": 43, "num_nextn_predict_layers": 1, "num_hash_layers": 3,
    "num_attention_heads": 64, "num_key_value_heads": 1, "head_dim": 512, "qk_rope_head_dim": 64,
    "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "sliding_window": 128, "index_n_heads": 64,
    "index_head_dim": 128, "index_topk": 512, "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "num_experts_per_tok": 6, "n_shared_experts": 1, "scoring_func": "sqrtsoftplus", "topk_method": "noaux_tc",
    "norm_topk_prob": true, "routed_scaling_factor": 1.5, "swiglu_limit": 10.0, "n_group": 8, "topk_group": 4,
    "hc_mult": 4, "hc_sinkhorn_iters": 20, "hc_eps": 1e-6, "rms_norm_eps": 1e-6, "rope_theta": 10000,
    "compress_rope_theta": 160000, "hidden_act": "silu", "max_position_embeddings": 1048576,
    "rope_scaling": {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536, "beta_fast": 32,
                     "beta_slow": 1},
    "bos_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": false, "attention_bias": false,
    "expert_dtype": "fp4",
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "scale_fmt": "ue8m0", "weight_block_size": [128, 128]}})");
  json ratios = {0, 0};
  for (int i = 0; i < 20; ++i) ratios.insert(ratios.end(), {4, 128});
  ratios.insert(ratios.end(), {4, 0});
  config["compress_ratios"] = ratios;
  return config;
}

// The model of Flash() as transformers saves it.
json SavedFlash() {
  json config = Flash();
  for (const char* name : {"compress_ratios", "num_hash_layers", "rope_scaling", "qk_rope_head_dim",
                           "rope_theta", "compress_rope_theta"}) {
    config.erase(name);
  }
  json types = {"sliding_attention", "sliding_attention"};
  for (int i = 0; i < 20; ++i) {
    types.insert(types.end(), {"compressed_sparse_attention", "heavily_compressed_attention"});
  }
  types.push_back("compressed_sparse_attention");
  config["layer_types"] = types;
  config["compress_rates"] = {{"compressed_sparse_attention", 4}, {"heavily_compressed_attention", 128}};
  json mlps = json::array();
  for (int i = 0; i < 43; ++i) mlps.push_back(i < 3 ? "hash_moe" : "moe");
  config["mlp_layer_types"] = mlps;
  config["partial_rotary_factor"] = 0.125;
  config["rope_parameters"] = json::parse(R"({
    "main": {"rope_type": "default", "rope_theta": 10000, "partial_rotary_factor": 0.125},
    "compress": {"rope_type": "yarn", "type": "yarn", "factor": 16, "original_max_position_embeddings": 65536,
                 "beta_fast": 32, "beta_slow": 1, "attention_factor": 1.0, "rope_theta": 160000,
                 "partial_rotary_factor": 0.125}})");
  return config;
}

absl::StatusOr<ModelConfig> Inspect(const json& config) {
  return ParseModelConfig(config.dump(), "config.json");
}

void ExpectFlash(const ModelConfig& config) {
  ASSERT_NE(FindV4Shape(config), nullptr);
  const DeepseekV4Shape& shape = V4ShapeOf(config);
  EXPECT_EQ(config.num_hidden_layers, 43);
  EXPECT_EQ(config.num_nextn_predict_layers, 1);
  EXPECT_EQ(config.num_attention_heads, 64);
  EXPECT_EQ(config.qk_rope_head_dim, 64);
  EXPECT_EQ(config.n_group, 1);  // V3's fields have no meaning
  EXPECT_EQ(config.topk_group, 1);
  EXPECT_EQ(config.projections, kFp8E8m0Format);
  EXPECT_EQ(config.experts, kMxfp4Format);
  EXPECT_EQ(shape.head_dim, 512);
  EXPECT_EQ(AttentionScale(shape.head_dim, {}), 1 / std::sqrt(512.0));
  EXPECT_EQ(config.longest_sequence(), 1048576);
  ASSERT_EQ(shape.layers.size(), 43u);
  int counts[3] = {};
  for (const AttentionKind kind : shape.layers) ++counts[static_cast<int>(kind)];
  EXPECT_THAT(counts, ElementsAre(2, 21, 20));
  EXPECT_EQ(shape.Kind(2), AttentionKind::kCompressedSparse);
  EXPECT_EQ(shape.Kind(3), AttentionKind::kHeavilyCompressed);
  EXPECT_EQ(shape.Kind(43), AttentionKind::kWindow);
  EXPECT_EQ(shape.Ratio(shape.Kind(1)), 0);
  EXPECT_EQ(shape.Ratio(shape.Kind(2)), 4);
  EXPECT_EQ(shape.Ratio(shape.Kind(3)), 128);
  EXPECT_TRUE(shape.IsHash(2));
  EXPECT_FALSE(shape.IsHash(3));
  EXPECT_FALSE(shape.IsHash(43));
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_FALSE(config.rope_scaling.has_value());
  EXPECT_EQ(shape.compress_rope_theta, 160000);
  ASSERT_TRUE(shape.compress_rope_scaling.has_value());
}

TEST(DeepseekV4Config, ReadsWhatDeepSeekShips) {
  const auto config = Inspect(Flash());
  ASSERT_TRUE(config.ok()) << config.status();
  ExpectFlash(*config);
}

TEST(DeepseekV4Config, ReadsWhatTransformersSaves) {
  const auto config = Inspect(SavedFlash());
  ASSERT_TRUE(config.ok()) << config.status();
  ExpectFlash(*config);
  json other = SavedFlash();
  other["compress_rates"] = {{"heavily_compressed_attention", 8}};
  other["mlp_layer_types"][1] = "moe";
  const auto read = Inspect(other);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(V4ShapeOf(*read).Ratio(AttentionKind::kHeavilyCompressed), 8);
  EXPECT_EQ(V4ShapeOf(*read).Ratio(AttentionKind::kCompressedSparse), 4);
  EXPECT_FALSE(V4ShapeOf(*read).IsHash(1));
  EXPECT_TRUE(V4ShapeOf(*read).IsHash(2));
}

// transformers had a field per ratio before it had compress_rates.
TEST(DeepseekV4Config, ReadsTheRatiosOfOldFiles) {
  json config = SavedFlash();
  config.erase("compress_rates");
  config["compress_rate_csa"] = 2;
  config["compress_rate_hca"] = 16;
  const auto read = Inspect(config);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(V4ShapeOf(*read).Ratio(AttentionKind::kCompressedSparse), 2);
  EXPECT_EQ(V4ShapeOf(*read).Ratio(AttentionKind::kHeavilyCompressed), 16);
  config["compress_rate_hca"] = 0;
  EXPECT_THAT(std::string(Inspect(config).status().message()),
              testing::HasSubstr("compress_rate_hca: 0, allowed 1..4096"));
}

// The frequencies are those of DeepSeek's own code, to the digits that it prints.
TEST(DeepseekV4Config, GivesTheFrequenciesOfBothRotations) {
  for (const json& config : {Flash(), SavedFlash()}) {
    const auto read = Inspect(config);
    ASSERT_TRUE(read.ok()) << read.status();
    const std::vector<double> compress =
        RopeFrequencies(64, V4ShapeOf(*read).compress_rope_theta, V4ShapeOf(*read).compress_rope_scaling);
    ASSERT_EQ(compress.size(), 32u);
    const struct {
      int pair;
      double frequency;
    } expected[] = {{0, 1.0},          {15, 0.00363553858}, {16, 0.002265625}, {20, 2.96977778e-4},
                    {24, 1.953125e-5}, {31, 5.68052904e-7}};
    for (const auto& row : expected) EXPECT_NEAR(compress[row.pair] / row.frequency, 1, 1e-6) << row.pair;
    const std::vector<double> main = RopeFrequencies(64, read->rope_theta, read->rope_scaling);
    for (int pair = 0; pair < 32; ++pair) {
      EXPECT_NEAR(main[pair] / std::pow(10000.0, -pair / 32.0), 1, 1e-12);
    }
  }
}

TEST(DeepseekV4Config, HasTransformersDefaults) {
  json config = Flash();
  for (const char* name : {"num_hash_layers",
                           "head_dim",
                           "qk_rope_head_dim",
                           "q_lora_rank",
                           "o_lora_rank",
                           "o_groups",
                           "sliding_window",
                           "index_n_heads",
                           "index_head_dim",
                           "index_topk",
                           "n_routed_experts",
                           "num_experts_per_tok",
                           "n_shared_experts",
                           "routed_scaling_factor",
                           "swiglu_limit",
                           "hc_mult",
                           "hc_sinkhorn_iters",
                           "hc_eps",
                           "rms_norm_eps",
                           "rope_theta",
                           "compress_rope_theta",
                           "expert_dtype",
                           "num_key_value_heads",
                           "scoring_func",
                           "topk_method",
                           "norm_topk_prob",
                           "n_group",
                           "topk_group"}) {
    config.erase(name);
  }
  const auto read = Inspect(config);
  ASSERT_TRUE(read.ok()) << read.status();
  ExpectFlash(*read);
  EXPECT_EQ(V4ShapeOf(*read).swiglu_limit, 10);
  EXPECT_EQ(read->index_topk, 512);
  config["quantization_config"]["expert_dtype"] = "fp8";
  EXPECT_FALSE(Inspect(config)->experts);
  config.erase("quantization_config");
  EXPECT_FALSE(Inspect(config)->experts);
}

TEST(DeepseekV4Config, ReadsTheGoldenCheckpoints) {
  for (const char* name : {"deepseek_v4", "deepseek_v4_fp4", "deepseek_v4_f32", "deepseek_v4_dspark",
                           "deepseek_v4_dspark_fp4"}) {
    const auto config = ReadModelConfig(std::string("tests/golden/checkpoints/") + name + "/config.json");
    EXPECT_TRUE(config.ok()) << config.status();
  }
}

// V4-Flash-0731's config.json: num_nextn_predict_layers is 1, and there is no module.
json WithDSpark(json config) {
  config["dspark_block_size"] = 5;
  config["dspark_noise_token_id"] = 128799;
  config["dspark_target_layer_ids"] = {40, 41, 42};
  config["dspark_markov_rank"] = 256;
  return config;
}

TEST(DeepseekV4Config, ReadsDSparkInThePlaceOfModules) {
  json config = WithDSpark(Flash());
  for (const int stages : {3, 1, 0}) {
    config["compress_ratios"] = json(std::vector<int>(43 + stages, 0));
    const auto read = Inspect(config);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->num_nextn_predict_layers, stages);
    EXPECT_EQ(read->drafter, "DSpark");
    ASSERT_TRUE(read->dspark.has_value());
    EXPECT_EQ(read->dspark->stage_count, stages);
    EXPECT_EQ(read->dspark->block_size, 5);
    EXPECT_EQ(read->dspark->noise_token_id, 128799);
    EXPECT_THAT(read->dspark->target_layer_ids, ElementsAre(40, 41, 42));
    EXPECT_EQ(read->dspark->markov_rank, 256);
    EXPECT_EQ(V4ShapeOf(*read).layers.size(), 43u);
  }
  EXPECT_FALSE(Inspect(Flash())->dspark.has_value());
}

struct DSparkRefusal {
  const char* patch;
  const char* error;
};
TEST(DeepseekV4Config, RefusesOtherDSparks) {
  for (const auto& [patch, error] : {
           DSparkRefusal{R"({"dspark_block_size": null})", "dspark_block_size: missing"},
           {R"({"dspark_noise_token_id": null})", "dspark_noise_token_id: missing"},
           {R"({"dspark_target_layer_ids": null})", "dspark_target_layer_ids: missing"},
           {R"({"dspark_markov_rank": null})", "dspark_markov_rank: missing"},
           {R"({"dspark_block_size": 1})", "dspark_block_size: 1, allowed 2..8"},
           {R"({"dspark_block_size": 9})", "dspark_block_size: 9, allowed 2..8"},
           {R"({"dspark_noise_token_id": 129280})", "dspark_noise_token_id: 129280, allowed 0..129279"},
           {R"({"dspark_noise_token_id": -1})", "dspark_noise_token_id: -1"},
           {R"({"dspark_target_layer_ids": []})",
            "dspark_target_layer_ids: [], allowed a list of different layers"},
           {R"({"dspark_target_layer_ids": [42, 43]})", "dspark_target_layer_ids: [42,43]"},
           {R"({"dspark_target_layer_ids": [1, 1]})", "dspark_target_layer_ids: [1,1]"},
           {R"({"dspark_target_layer_ids": 42})", "dspark_target_layer_ids: 42"},
           {R"({"dspark_target_layer_ids": [18446744073709551615]})",
            "dspark_target_layer_ids: [18446744073709551615]"},
           {R"({"dspark_markov_rank": 0})", "dspark_markov_rank: 0, allowed 1..4096"},
           {R"({"dspark_n_routed_experts": 128})",
            "dspark_n_routed_experts: 128, allowed dspark_block_size, "},
           {R"({"eagle_config": {}})", "eagle_config: {}, allowed MTP modules only"},
       }) {
    json config = WithDSpark(Flash());
    config.merge_patch(json::parse(patch));
    const absl::Status status = Inspect(config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << patch;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error));
  }
}

struct V4Refusal {
  const char* name;
  bool saved;
  const char* patch;  // merged into the config
  const char* error;
};

const V4Refusal kV4Refusals[] = {
    {"DSpark", false, R"({"dspark_block_size": 7})", "dspark_noise_token_id: missing"},
    {"StagesOfNothing", false, R"({"num_hidden_layers": 1, "compress_ratios": [0, 0, 0, 0]})", "2 in all"},
    {"RopesThatContradict", false, R"({"rope_parameters": {"rope_type": "default"}})",
     "rope_scaling: says something else than rope_parameters"},
    {"BasesThatContradict", true, R"({"rope_theta": 50000})",
     "rope_parameters.main.rope_theta: 10000, allowed 50000, as rope_theta says beside it"},
    {"BaseOfNeither", false, R"({"rope_scaling": {"rope_theta": 7}})",
     "rope_scaling.rope_theta: 7, allowed 10000"},
    {"NoKinds", false, R"({"compress_ratios": null})", "compress_ratios: missing"},
    {"OtherRatio", false, R"({"num_hidden_layers": 2, "compress_ratios": [0, 32, 0]})",
     "compress_ratios: [0,32,0], allowed 0, 4 or 128 for 2 layers"},
    {"RatioCount", false, R"({"num_hidden_layers": 2, "compress_ratios": [0, 4, 0, 0]})", "3 in all"},
    {"CompressedModule", false, R"({"num_hidden_layers": 2, "compress_ratios": [0, 4, 4]})",
     "then 0 for the MTP modules"},
    {"RatioList", false, R"({"compress_ratios": 4})", "compress_ratios: 4, allowed"},
    {"LayerType", true, R"({"num_hidden_layers": 1, "layer_types": ["full_attention"]})",
     R"(layer_types: ["full_attention"], allowed sliding_attention)"},
    {"LayerTypeCount", true, R"({"layer_types": ["sliding_attention"]})", "for 43 layers"},
    {"MlpType", true, R"({"mlp_layer_types": ["dense"]})",
     R"(mlp_layer_types: ["dense"], allowed hash_moe, moe)"},
    {"MlpTypeObject", true, R"({"mlp_layer_types": {"a": "moe"}})", "mlp_layer_types: "},
    {"Rate", true, R"({"compress_rates": {"heavily_compressed_attention": 0}})",
     "compress_rates.heavily_compressed_attention: 0, allowed 1..4096"},
    {"Rates", true, R"({"compress_rates": 4})", "compress_rates: 4, allowed an object"},
    {"MainYarn", true, R"({"rope_parameters": {"main": {"rope_type": "yarn", "factor": 2,
                                                        "original_max_position_embeddings": 64}}})",
     "rope_parameters.main.rope_type: yarn, allowed default"},
    {"CompressPart", true, R"({"rope_parameters": {"compress": 4}})", "rope_parameters.compress: 4"},
    {"AttentionFactor", true, R"({"rope_parameters": {"compress": {"attention_factor": 1.3}}})",
     "rope_parameters.compress.attention_factor: 1.3, allowed 1..1"},
    {"Mscale", false, R"({"rope_scaling": {"mscale": 1.0}})", "rope_scaling.mscale: 1.0, allowed absent"},
    {"RopeType", false, R"({"rope_scaling": {"type": "linear"}})", R"(rope_scaling.type: "linear")"},
    {"RopeObject", false, R"({"rope_scaling": [1]})", "rope_scaling: [1], allowed an object"},
    {"OddRotation", false, R"({"qk_rope_head_dim": 63})", "qk_rope_head_dim: 63 rotated values"},
    {"WideRotation", false, R"({"qk_rope_head_dim": 514})", "allowed even numbers 2..512, head_dim"},
    {"Factor", true, R"({"partial_rotary_factor": 0.001})", "partial_rotary_factor: 1 rotated values"},
    {"NarrowIndex", false, R"({"index_head_dim": 32})", "index_head_dim: 32, allowed 64.."},
    {"Groups", false, R"({"o_groups": 7})", "o_groups: 7, allowed divisors of num_attention_heads, 64"},
    {"Keys", false, R"({"num_key_value_heads": 8})", "num_key_value_heads: 8, allowed 1..1"},
    {"Scoring", false, R"({"scoring_func": "sigmoid"})", R"(scoring_func: "sigmoid", allowed sqrtsoftplus)"},
    {"Norm", false, R"({"norm_topk_prob": false})", "norm_topk_prob: false, allowed true"},
    {"Experts", false, R"({"num_experts_per_tok": 257})", "num_experts_per_tok: 257, allowed 1..256"},
    {"ExpertDType", false, R"({"expert_dtype": "int4"})", R"(expert_dtype: "int4", allowed fp4, fp8)"},
    {"HashLayers", false, R"({"num_hash_layers": 44})", "num_hash_layers: 44, allowed 0..43"},
    {"Streams", false, R"({"hc_mult": 17})", "hc_mult: 17, allowed 1..16"},
    {"Iterations", false, R"({"hc_sinkhorn_iters": 0})", "hc_sinkhorn_iters: 0, allowed 1..1000"},
    {"Tied", false, R"({"tie_word_embeddings": true})", "tie_word_embeddings: true, allowed false"},
    {"Bias", false, R"({"attention_bias": true})", "attention_bias: true, allowed false"},
    {"ModelType", false, R"({"model_type": "deepseek_v41"})",
     R"(model_type: "deepseek_v41", allowed deepseek_v4)"},
};

class DeepseekV4ConfigRefuses : public ::testing::TestWithParam<V4Refusal> {};

TEST_P(DeepseekV4ConfigRefuses, NamingFieldAndValue) {
  json config = GetParam().saved ? SavedFlash() : Flash();
  config.merge_patch(json::parse(GetParam().patch));
  const absl::Status status = Inspect(config).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(GetParam().error));
}

INSTANTIATE_TEST_SUITE_P(Cases, DeepseekV4ConfigRefuses, ::testing::ValuesIn(kV4Refusals),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
