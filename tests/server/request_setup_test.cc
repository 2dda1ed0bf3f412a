#include "server/request_setup.h"

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

}  // namespace
}  // namespace foredraft
