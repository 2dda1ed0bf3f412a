#include "server/request_setup.h"

#include "config/config_defaults.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/kinds/read_model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

TEST(LoadTokenizer, RefusesIdsPastTheVocabulary) {
  Config config;
  config.model = "deploy/models/abacus";
  ModelConfig model;
  model.vocab_size = 632;  // abacus' tokenizer has ids 0..631
  EXPECT_TRUE(LoadTokenizer(config, model).ok());
  model.vocab_size = 631;
  const absl::Status status = LoadTokenizer(config, model).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(
      status.message(),
      "deploy/models/abacus/tokenizer.json: the largest token id is 631, vocab_size in config.json is 631");
}

TEST(TokenCountOf, IsTheTokenizersWithEveryEndToken) {
  LoadedConfig loaded;
  loaded.config.model = "deploy/models/abacus";
  ModelConfig model = *ReadModelConfig("deploy/models/abacus/config.json");
  const ModelLimits limits = ComputeModelLimits(model);
  ASSERT_TRUE(ResolveDefaults({}, &limits, loaded).ok());
  const Config& config = loaded.config;
  model.vocab_size = 704;
  model.eos_token_ids = {1};
  const auto tokenizer = LoadTokenizer(config, model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(TokenCountOf(**tokenizer, model, {}), 632);
  model.vocab_size = 632;
  EXPECT_EQ(TokenCountOf(**tokenizer, model, {}), 632);
  // An output must be able to end, whatever the tokenizer knows.
  model.vocab_size = 704;
  model.eos_token_ids = {1, 650};
  EXPECT_EQ(TokenCountOf(**tokenizer, model, {}), 651);
  EXPECT_EQ(TokenCountOf(**tokenizer, model, {.eos_token_ids = {640}}), 641);
  EXPECT_EQ(RequestLimitsOf(config, model, {}, **tokenizer, {}).token_count, 651);
}

// abacus with a token that only its model's vocabulary has room for.
TEST(MissingTokensOf, AreTheHolesThatEndNothing) {
  ModelConfig model = *ReadModelConfig("deploy/models/abacus/config.json");
  model.vocab_size = 704;
  model.eos_token_ids = {1};
  const auto dense = Tokenizer::Load("deploy/models/abacus/tokenizer.json");
  ASSERT_TRUE(dense.ok()) << dense.status();
  EXPECT_THAT(MissingTokensOf(**dense, model, {}), testing::IsEmpty());
  // End tokens beyond leave a hole each between them, and may be chosen.
  model.eos_token_ids = {1, 633, 635};
  EXPECT_THAT(MissingTokensOf(**dense, model, {}), testing::ElementsAre(632, 634));
  EXPECT_EQ(TokenCountOf(**dense, model, {}), 636);

  const auto holed = Tokenizer::Parse(
      R"({"added_tokens":[{"id":6,"content":"<e>","special":true}],"decoder":{"type":"ByteLevel"},
          "pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},
          "model":{"type":"BPE","vocab":{"a":0,"b":3},"merges":[]}})",
      "");
  ASSERT_TRUE(holed.ok()) << holed.status();
  model.eos_token_ids = {6};
  EXPECT_THAT(MissingTokensOf(**holed, model, {}), testing::ElementsAre(1, 2, 4, 5));
}

TEST(CheckThinkingIds, RefusesHalfAThought) {
  EXPECT_TRUE(CheckThinkingIds({}).ok());
  EXPECT_TRUE(CheckThinkingIds({.begin = 5, .end = 6}).ok());
  EXPECT_EQ(
      CheckThinkingIds({.begin = 5, .end = -1}).message(),
      "token 5 begins a thought and no token ends one: tokenizer.json has no added token \"</think>\", and "
      "speculative_config.end_thinking_phase_token is not set, allowed both tokens or neither");
  EXPECT_EQ(
      CheckThinkingIds({.begin = -1, .end = 6}).message(),
      "token 6 ends a thought and no token begins one: tokenizer.json has no added token \"<think>\", and "
      "speculative_config.begin_thinking_phase_token is not set, allowed both tokens or neither");
}

}  // namespace
}  // namespace foredraft
