// The keys of sparse attention (docs/deepseek-v3.md section 9).

#include <algorithm>
#include <string>
#include <vector>

#include "engine/kinds/read_model_config.h"
#include "engine/model/model_config.h"
#include "engine/model/model_kind.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

absl::StatusOr<ModelConfig> Parse(const json& config) {
  return ParseModelConfig(config.dump(), "config.json");
}

ModelConfig ParseOrDie(const json& config) {
  absl::StatusOr<ModelConfig> parsed = Parse(config);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : ModelConfig{};
}

// DeepSeek-V3.2's shape under a family's name.
json Sparse(const char* architecture, const char* model_type) {
  json config = json::parse(R"({
    "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61, "num_nextn_predict_layers": 1,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
    "num_attention_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64, "v_head_dim": 128, "max_position_embeddings": 163840, "index_topk": 2048,
    "index_n_heads": 64, "index_head_dim": 128, "eos_token_id": 1})");
  config["architectures"] = {architecture};
  config["model_type"] = model_type;
  return config;
}
json V32() { return Sparse("DeepseekV32ForCausalLM", "deepseek_v32"); }
json Glm5() { return Sparse("GlmMoeDsaForCausalLM", "glm_moe_dsa"); }

// GLM-5.3's published config.json, which says nothing that GLM-5.2's does not but how its router multiplies.
TEST(SparseConfig, ReadsGlm53) {
  json config = json::parse(R"({
    "architectures": ["GlmMoeDsaForCausalLM"], "model_type": "glm_moe_dsa", "attention_bias": false,
    "attention_dropout": 0.0, "dtype": "bfloat16", "eos_token_id": [154820, 154827, 154829], "ep_size": 1,
    "first_k_dense_replace": 3, "head_dim": 192, "hidden_act": "silu", "hidden_size": 6144,
    "index_head_dim": 128, "index_n_heads": 32, "index_share_for_mtp_iteration": true,
    "index_skip_topk_offset": 3, "index_topk": 2048, "index_topk_freq": 4, "index_topk_pattern": null,
    "indexer_rope_interleave": true, "intermediate_size": 12288, "kv_lora_rank": 512,
    "max_position_embeddings": 1048576, "moe_intermediate_size": 2048, "moe_layer_freq": 1,
    "moe_router_dtype": "float32", "n_group": 1, "n_routed_experts": 256, "n_shared_experts": 1,
    "norm_topk_prob": true, "num_attention_heads": 64, "num_experts_per_tok": 8, "num_hidden_layers": 78,
    "num_key_value_heads": 64, "num_nextn_predict_layers": 1, "q_lora_rank": 2048, "qk_head_dim": 256,
    "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-5, "rope_interleave": true,
    "rope_parameters": {"rope_theta": 8000000, "rope_type": "default"}, "routed_scaling_factor": 2.5,
    "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 1, "topk_method": "noaux_tc",
    "v_head_dim": 256, "vocab_size": 154880})");
  for (int layer = 0; layer < 78; ++layer) {
    config["indexer_types"].push_back(std::max(layer - 2, 0) % 4 == 0 ? "full" : "shared");
    config["mlp_layer_types"].push_back(layer < 3 ? "dense" : "sparse");
  }
  const ModelConfig glm = ParseOrDie(config);
  EXPECT_EQ(glm.longest_sequence(), 1048576);
  EXPECT_EQ(glm.rope_theta, 8000000);
  EXPECT_TRUE(glm.index_share_for_mtp_iteration);
  EXPECT_EQ(std::count(glm.shares_selection.begin(), glm.shares_selection.end(), false), 21);
  EXPECT_TRUE(glm.HasIndexer(2) && !glm.HasIndexer(3) && glm.HasIndexer(6) && glm.HasIndexer(78));
  EXPECT_EQ(glm.kind->chat_format(glm), "");
}

TEST(SparseConfig, SparseAttentionHasAnIndexerAndTheFamilysPairs) {
  json config = V32();
  const ModelConfig v32 = ParseOrDie(config), glm = ParseOrDie(Glm5());
  EXPECT_EQ(v32.longest_sequence(), 163840);
  EXPECT_FALSE(v32.index_interleaved);
  EXPECT_TRUE(glm.index_interleaved);
  EXPECT_TRUE(v32.HasIndexer(0));
  EXPECT_TRUE(v32.HasIndexer(v32.num_hidden_layers));
  EXPECT_EQ(v32.kind->chat_format(v32), "deepseek_v32");  // it has no template
  for (const char* field : {"index_topk", "index_n_heads", "index_head_dim"}) {
    json without = config;
    without.erase(field);
    EXPECT_THAT(std::string(Parse(without).status().message()), HasSubstr(std::string(field) + ": missing"));
  }
  config["q_lora_rank"] = nullptr;
  EXPECT_THAT(std::string(Parse(config).status().message()),
              HasSubstr("q_lora_rank: null, allowed 1 or more"));
  config = V32();
  config["index_head_dim"] = 32;
  EXPECT_THAT(std::string(Parse(config).status().message()),
              HasSubstr("index_head_dim: 32, allowed at least qk_rope_head_dim, 64"));
}

TEST(SparseConfig, PairsOfTheIndexerThatContradictTheFamilyAreRefused) {
  json v32 = V32(), glm = Glm5();
  v32["indexer_rope_interleave"] = false;
  glm["indexer_rope_interleave"] = true;
  EXPECT_FALSE(ParseOrDie(v32).index_interleaved);
  EXPECT_TRUE(ParseOrDie(glm).index_interleaved);
  v32["indexer_rope_interleave"] = true;
  glm["indexer_rope_interleave"] = false;
  EXPECT_THAT(std::string(Parse(v32).status().message()),
              HasSubstr("indexer_rope_interleave: true, allowed false, as deepseek_v32 has it"));
  EXPECT_THAT(std::string(Parse(glm).status().message()),
              HasSubstr("indexer_rope_interleave: false, allowed true, as glm_moe_dsa has it"));
}

// An indexer wider than the kernels take: served up to index_topk, as full attention.
TEST(SparseConfig, AWideIndexerBoundsTheSequence) {
  for (const char* field : {"index_n_heads", "index_head_dim"}) {
    json config = V32();
    config[field] = 129;
    const ModelConfig wide = ParseOrDie(config);
    EXPECT_EQ(wide.longest_sequence(), 2048) << field;
    EXPECT_FALSE(wide.HasIndexer(0)) << field;
  }
}

// The layers with an indexer of a model.
std::vector<int> FullLayers(const json& config) {
  const ModelConfig parsed = ParseOrDie(config);
  std::vector<int> layers;
  for (int layer = 0; layer <= parsed.num_hidden_layers; ++layer) {
    if (parsed.HasIndexer(layer)) layers.push_back(layer);
  }
  return layers;
}

TEST(SparseConfig, LayersMayShareASelection) {
  json config = Glm5();
  config["num_hidden_layers"] = 11;
  config["index_topk_freq"] = 4;
  const std::vector<int> by_default = {0, 1, 5, 9, 11}, glm52 = {0, 1, 2, 6, 10, 11};  // 11: the MTP module
  EXPECT_EQ(FullLayers(config), by_default);
  config["index_skip_topk_offset"] = 3;
  EXPECT_EQ(FullLayers(config), glm52);
  config.erase("index_topk_freq");
  EXPECT_EQ(FullLayers(config).size(), 12u);
  config["index_topk_pattern"] = "FFFSSSFSSSF";
  EXPECT_EQ(FullLayers(config), glm52);
  config["index_topk_pattern"] = {"F", "F", "F", "S", "S", "S", "F", "S", "S", "S", "F"};
  EXPECT_EQ(FullLayers(config), glm52);
  config.erase("index_topk_pattern");
  config["indexer_types"] = json::array();
  for (int layer = 0; layer < 11; ++layer) {
    const bool full = std::find(glm52.begin(), glm52.end(), layer) != glm52.end();
    config["indexer_types"].push_back(full ? "full" : "shared");
  }
  EXPECT_EQ(FullLayers(config), glm52);
  config["index_share_for_mtp_iteration"] = true;
  EXPECT_EQ(FullLayers(config), glm52);
}

TEST(SparseConfig, WrongListsOfSharingLayersAreRefused) {
  json config = Glm5();
  config["num_hidden_layers"] = 3;
  const auto expect_refused = [&](const char* field, const json& value, const char* shown) {
    json wrong = config;
    wrong[field] = value;
    EXPECT_THAT(std::string(Parse(wrong).status().message()), HasSubstr(shown)) << field << " " << value;
  };
  expect_refused("indexer_types", {"full", "shared"},
                 "allowed 3 of \"full\" and \"shared\", the first \"full\"");
  expect_refused("indexer_types", {"shared", "full", "full"}, "the first \"full\"");
  expect_refused("indexer_types", {"full", "half", "full"}, "half");
  expect_refused("index_topk_pattern", "FSX", "index_topk_pattern: \"FSX\", allowed 3 of \"F\" and \"S\"");
  expect_refused("index_topk_pattern", "SFF", "index_topk_pattern");
  expect_refused("index_topk_freq", 0, "index_topk_freq: 0");
  expect_refused("layer_types",
                 {"linear_attention", "deepseek_sparse_attention", "deepseek_sparse_attention"},
                 "layer_types");
  config["layer_types"] = {"indexed_attention", "deepseek_sparse_attention", "indexed_attention"};
  EXPECT_EQ(FullLayers(config).size(), 4u);
}

}  // namespace
}  // namespace foredraft
