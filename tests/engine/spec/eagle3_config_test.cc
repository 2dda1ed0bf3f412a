// config.json of Eagle3 heads: what each form means, and what is refused by which field (docs/eagle3.md).

#include "engine/spec/eagle3/eagle3_config.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/spec/eagle3/eagle3_tokens.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "tests/engine/checkpoint/checkpoint_files.h"

namespace foredraft {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Kimi-K2.6's, as far as a head knows it.
ModelConfig Target() {
  ModelConfig target;
  target.architecture = "DeepseekV3ForCausalLM";
  target.hidden_size = 7168;
  target.vocab_size = 163840;
  target.num_hidden_layers = 61;
  target.kv_lora_rank = 512;
  return target;
}

json Head() {
  return json::parse(R"({
    "architectures": ["Eagle3DeepseekV2ForCausalLM"], "hidden_size": 7168, "vocab_size": 163840,
    "num_hidden_layers": 1, "intermediate_size": 18432, "num_attention_heads": 64, "num_key_value_heads": 64,
    "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 50000.0, "max_position_embeddings": 2048,
    "rope_scaling": {"type": "yarn", "factor": 64.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
                     "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0}})");
}

absl::StatusOr<DraftHead> Parse(const json& config, const std::vector<int>& layers = {}) {
  return ParseEagle3Config(config.dump(), "head/config.json", Target(), layers);
}

json With(const std::string& fields) {
  json config = Head();
  config.update(json::parse(fields));
  return config;
}

std::string Refusal(const json& config, const std::vector<int>& layers = {}) {
  const absl::StatusOr<DraftHead> head = Parse(config, layers);
  EXPECT_EQ(head.status().code(), absl::StatusCode::kInvalidArgument) << config.dump();
  return std::string(head.status().message());
}

TEST(Eagle3Config, ReadsTheHeadsOwnNumbers) {
  const absl::StatusOr<DraftHead> head = Parse(Head());
  ASSERT_TRUE(head.ok()) << head.status();
  EXPECT_EQ(head->draft_vocab_size, 163840);
  EXPECT_EQ(head->layer.rms_norm_eps, 1e-5);
  EXPECT_EQ(head->layer.latent_norm_eps, 1e-5);  // every norm's, MLA's latents included
  EXPECT_EQ(head->layer.rope_theta, 50000);
  EXPECT_EQ(head->layer.rope_scaling->beta_fast, 1);
  EXPECT_FALSE(head->norm_before_residual || head->norm_before_fc || head->fc_norm || head->norm_output);
  const DraftHead other = *Parse(With(R"({"fc_norm": true, "norm_output": true, "norm_before_residual": true,
                                          "draft_vocab_size": 32000})"));
  EXPECT_TRUE(other.norm_before_residual && other.fc_norm && other.norm_output);
  EXPECT_EQ(other.draft_vocab_size, 32000);
  EXPECT_TRUE(Parse(With(R"({"use_aux_norm": true})"))->fc_norm);  // an older name
  for (const char* const name : {"Eagle3DeepseekV3ForCausalLM", "Eagle3DeepSeekV3ForCausalLM"}) {
    EXPECT_TRUE(Parse(With(absl::StrCat(R"({"architectures": [")", name, "\"]}"))).ok()) << name;
  }
}

// Four spellings of the same layers.
TEST(Eagle3Config, TapsAreOutputsHoweverTheyAreSpelled) {
  const auto taps = [](const std::string& fields) { return Parse(With(fields))->taps; };
  EXPECT_THAT(taps(R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 57]}})"),
              ElementsAre(1, 29, 57));
  EXPECT_THAT(taps(R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 30, 58]}})"),
              ElementsAre(1, 29, 57));
  EXPECT_THAT(taps(R"({"eagle_aux_hidden_state_layer_ids": [2, 30, 58]})"), ElementsAre(1, 29, 57));
  EXPECT_THAT(taps(R"({"aux_hidden_state_layer_ids": [1, 30, 61]})"), ElementsAre(0, 29, 60));
  const DraftHead said = *Parse(With(R"({"aux_hidden_state_layer_ids": [1, 30, 61]})"), {3, 4});
  EXPECT_THAT(said.taps, ElementsAre(3, 4));  // the configuration wins
  EXPECT_FALSE(said.assumed_taps);
  const DraftHead assumed = *Parse(Head());
  EXPECT_THAT(assumed.taps, ElementsAre(1, 29, 57));
  EXPECT_TRUE(assumed.assumed_taps);
}

struct RefusedHead {
  const char* fields;
  const char* message;
};

TEST(Eagle3Config, RefusesByField) {
  const RefusedHead cases[] = {
      {R"({"architectures": ["LlamaForCausalLMEagle3"]})", "an Eagle3 head with grouped attention"},
      {R"({"architectures": ["Eagle3Qwen3ForCausalLM"]})", "an Eagle3 head with grouped attention"},
      {R"({"architectures": ["DFlashDraftModel"]})", "this is a DFlash head"},
      {R"({"architectures": ["Qwen3DSparkModel"]})", "this is a DSpark head"},
      {R"({"architectures": ["PEagleDeepseekV3ForCausalLM"]})", "this is P-Eagle"},
      {R"({"architectures": ["Foo"]})", "architectures: [\"Foo\"], allowed Eagle3DeepseekV2ForCausalLM"},
      {R"({"architectures": []})", "architectures: []"},
      {R"({"speculators_model_type": "eagle3"})", "speculators_model_type: \"eagle3\", allowed none"},
      {R"({"hidden_size": 4096})", "hidden_size: 4096, allowed 7168, the target's"},
      {R"({"target_hidden_size": 4096})", "target_hidden_size: 4096, allowed 7168"},
      {R"({"vocab_size": 129280})", "vocab_size: 129280, allowed 163840, the target's"},
      {R"({"draft_vocab_size": 163841})", "draft_vocab_size: 163841, allowed 1..163840"},
      {R"({"num_hidden_layers": 2})", "num_hidden_layers: 2, allowed 1"},
      {R"({"num_key_value_heads": 8})", "num_key_value_heads: 8, allowed num_attention_heads, 64"},
      {R"({"q_lora_rank": null})", "q_lora_rank: missing"},
      {R"({"bias": true})", "bias: true, allowed false"},
      {R"({"attention_bias": true})", "attention_bias: true, allowed false"},
      {R"({"use_aux_hidden_state": false})", "use_aux_hidden_state: false"},
      {R"({"parallel_drafting": true})", "parallel_drafting: true"},
      {R"({"pard_token": 7})", "pard_token: 7"},
      {R"({"hidden_act": "gelu"})", "hidden_act: \"gelu\", allowed silu"},
      {R"({"rope_interleave": false})", "rope_interleave: false"},
      {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.type: \"linear\""},
      {R"({"fc_norm": true, "norm_before_fc": true})", "norm_before_fc: true, allowed false with fc_norm"},
      {R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [3, 29, 57]}})", "eagle3_layers_to_capture"},
      {R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 57, 29]}})", "ascending layers 0..60"},
      {R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 29]}})", "ascending layers 0..60"},
      {R"({"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 29, 61]}})", "ascending layers 0..60"},
      {R"({"aux_hidden_state_layer_ids": [0, 29]})", "ascending layers 0..60"},
      {R"({"aux_hidden_state_layer_ids": "all"})", "aux_hidden_state_layer_ids: \"all\", allowed a list"},
      {R"({"aux_hidden_state_layer_ids": []})", "ascending layers"},
  };
  for (const RefusedHead& refused : cases) {
    const std::string message = Refusal(With(refused.fields));
    EXPECT_THAT(message, HasSubstr("head/config.json: "));
    EXPECT_THAT(message, HasSubstr(refused.message));
  }
  EXPECT_THAT(Refusal(Head(), {5, 61}),
              HasSubstr("speculative_config.eagle3_layers_to_capture: layers [5, 61]"));
}

// From the head that ships, whose fc takes three layers.
absl::Status ReadHead(const std::string& dir, const std::vector<int>& layers = {}) {
  ModelConfig target;
  target.hidden_size = 128;
  target.vocab_size = 640;
  target.num_hidden_layers = 8;
  Config config;
  config.speculative_config.emplace().speculative_model = dir;
  config.speculative_config->eagle3_layers_to_capture = layers;
  return ReadEagle3(config, target);
}

TEST(Eagle3Files, RefusesAPathThatIsNoHeadsByItsKey) {
  constexpr char kAllowed[] = ", allowed the checkpoint directory of a head";
  EXPECT_EQ(
      ReadHead("/nonexistent").message(),
      absl::StrCat("speculative_config.speculative_model: /nonexistent", kAllowed, ": no such directory"));
  EXPECT_EQ(ReadHead("deploy/models/abacus-eagle3/config.json").message(),
            absl::StrCat("speculative_config.speculative_model: deploy/models/abacus-eagle3/config.json",
                         kAllowed));
}

TEST(Eagle3Files, RefusesAnotherNumberOfLayersThanFcTakes) {
  constexpr char kHead[] = "deploy/models/abacus-eagle3";
  EXPECT_EQ(ReadHead(kHead), absl::OkStatus());
  EXPECT_EQ(ReadHead(kHead, {0, 2, 5}), absl::OkStatus());
  EXPECT_EQ(ReadHead(kHead, {1, 7}).message(),
            "speculative_config.eagle3_layers_to_capture: [1, 7], allowed 3 layers: tensor fc.weight of "
            "deploy/models/abacus-eagle3/model.safetensors has [128, 384]");
}

class DraftTokens : public testing::Test {
 protected:
  // Writes lm_head, and d2t where there are distances, of a head with `own` of 8 tokens.
  absl::Status Read(int own, const std::vector<int64_t>& distances, bool lm_head = true) {
    const std::string dir = MakeTestDir("draft_tokens");
    std::vector<RawTensor> tensors = {{"norm.weight", "F32", {1}, std::string(4, '\0')}};
    if (lm_head) tensors.push_back({"lm_head.weight", "F32", {own, 1}, std::string(4 * own, '\0')});
    if (!distances.empty()) {
      const auto* const bytes = reinterpret_cast<const char*>(distances.data());
      tensors.push_back({"d2t",
                         "I64",
                         {static_cast<int64_t>(distances.size())},
                         std::string(bytes, distances.size() * sizeof(int64_t))});
    }
    WriteSafetensors(dir + "/model.safetensors", tensors);
    head_ = {};
    head_.layer.vocab_size = 8;
    head_.draft_vocab_size = own;
    return ReadDraftTokens(*Checkpoint::Open(dir), head_);
  }
  DraftHead head_;
};

TEST_F(DraftTokens, AreDistancesFromTheHeadsIds) {
  ASSERT_EQ(Read(3, {1, 3, 5}), absl::OkStatus());
  EXPECT_THAT(head_.token_ids, ElementsAre(1, 4, 7));
  ASSERT_EQ(Read(3, {7, -1, 0}), absl::OkStatus());  // in any order
  EXPECT_THAT(head_.token_ids, ElementsAre(7, 0, 2));
  ASSERT_EQ(Read(8, std::vector<int64_t>(8, 0)), absl::OkStatus());  // all tokens
  EXPECT_TRUE(head_.token_ids.empty());
  ASSERT_EQ(Read(8, {}, /*lm_head=*/false), absl::OkStatus());
  EXPECT_FALSE(head_.own_lm_head);
}

TEST_F(DraftTokens, RefusesWhatIsNoPartOfTheVocabulary) {
  const auto refused = [&](const absl::Status& status) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused(Read(3, {1, 3, 6})), HasSubstr("tensor d2t: element 2: 6, allowed -2..5"));
  EXPECT_THAT(refused(Read(3, {-1, 3, 5})), HasSubstr("element 0: -1, allowed 0..7"));
  EXPECT_THAT(refused(Read(3, {0, 0, INT64_MAX})), HasSubstr("element 2"));
  EXPECT_THAT(refused(Read(3, {0, 0, INT64_MIN})), HasSubstr("element 2"));
  EXPECT_THAT(refused(Read(3, {1, 0, 5})), HasSubstr("token 1 is named twice"));
  EXPECT_THAT(refused(Read(3, {1, 3})), HasSubstr("I64 [3], draft_vocab_size"));
  EXPECT_THAT(refused(Read(3, {})), HasSubstr("no tensor d2t"));
  EXPECT_THAT(refused(Read(3, {1, 3, 5}, /*lm_head=*/false)), HasSubstr("no tensor lm_head.weight"));
}

}  // namespace
}  // namespace foredraft
