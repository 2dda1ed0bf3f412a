#include "tests/engine/eagle3_heads.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "nlohmann/json.hpp"
#include "tools/synth/synth.h"

namespace foredraft {
namespace {

// With another rotation, another number of heads and other widths than the target, and fewer positions than
// sequences have: what a head takes from the target, or of its own numbers, by mistake shows.
constexpr char kCommon[] = R"({
  "architectures": ["Eagle3DeepseekV2ForCausalLM"], "hidden_size": 128, "vocab_size": 640, "num_hidden_layers": 1,
  "intermediate_size": 160, "num_attention_heads": 6, "num_key_value_heads": 6, "q_lora_rank": 48,
  "kv_lora_rank": 64, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 40, "hidden_act": "silu",
  "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "max_position_embeddings": 32,
  "rope_scaling": {"type": "yarn", "factor": 8.0, "original_max_position_embeddings": 64, "beta_fast": 1.0,
                   "beta_slow": 1.0, "mscale": 0.4, "mscale_all_dim": 1.0},
  "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 4, 7]}})";

}  // namespace

const std::vector<HeadForm>& HeadForms() {
  static const std::vector<HeadForm> forms = {
      {"plain", "{}"},
      {"normed", R"({"fc_norm": true, "norm_output": true})"},
      {"residual", R"({"norm_before_residual": true, "norm_before_fc": true})"},
      {"small_vocabulary", R"({"draft_vocab_size": 200, "norm_output": true})"},
      {"targets_head", R"({"tie_word_embeddings": true, "rope_scaling": null})"},
      {"inputs", R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 3, 4, 8]}})"},
  };
  return forms;
}

std::string RandomHeadDir(const HeadForm& form, const std::string& target_dir) {
  static auto* const written = new std::map<std::string, std::string>;
  std::string& dir = (*written)[form.name];
  if (!dir.empty()) return dir;
  dir = absl::StrCat(testing::TempDir(), "/eagle3_", form.name);
  std::filesystem::remove_all(dir);
  nlohmann::json config = nlohmann::json::parse(kCommon);
  config.update(nlohmann::json::parse(form.fields));
  const std::string head_json = dir + ".json";
  std::ofstream(head_json) << config.dump();
  const auto report = WriteRandomHead(
      {.config_json = absl::StrCat(target_dir, "/config.json"), .out_dir = dir, .seed = 5}, head_json);
  CHECK(report.ok()) << report.status().ToString();
  return dir;
}

const HeadForm kKimiHead = {"of_kimi_k2", R"({
  "hidden_size": 48, "vocab_size": 128, "draft_vocab_size": 64, "intermediate_size": 40, "num_attention_heads": 3,
  "num_key_value_heads": 3, "q_lora_rank": 16, "kv_lora_rank": 24, "qk_nope_head_dim": 12, "qk_rope_head_dim": 8,
  "v_head_dim": 16, "fc_norm": true, "eagle_config": null, "aux_hidden_state_layer_ids": [1, 2]})"};

std::string NestedKimiDir() {
  const std::string dir = absl::StrCat(testing::TempDir(), "/nested_kimi");
  std::filesystem::remove_all(dir);
  std::ifstream file("tests/golden/checkpoints/kimi_k2/config.json");
  const nlohmann::json config = {{"architectures", {"KimiK25ForConditionalGeneration"}},
                                 {"model_type", "kimi_k25"},
                                 {"vision_config", nlohmann::json::object()},
                                 {"text_config", nlohmann::json::parse(file)}};
  const std::string config_json = dir + ".json";
  std::ofstream(config_json) << config.dump();
  const auto report = WriteRandomCheckpoint({.config_json = config_json, .out_dir = dir, .seed = 6});
  CHECK(report.ok()) << report.status().ToString();
  return dir;
}

}  // namespace foredraft
