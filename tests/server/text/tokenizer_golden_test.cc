// The ids that Hugging Face's library, and tiktoken, give for texts of all scripts;
// tests/golden/make_tokenizer_golden.py and make_kimi_golden.py made the goldens.

#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "server/text/chat_format.h"
#include "server/text/detokenizer.h"
#include "server/text/tokenizer.h"

namespace foredraft {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

std::string HashIds(const Ids& ids) {
  uint64_t value = 0xCBF29CE484222325;
  for (const int32_t id : ids) value = (value ^ static_cast<uint32_t>(id)) * 0x100000001B3;
  return absl::StrFormat("%016x", value);
}

class TokenizerGolden : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    std::ifstream file(absl::StrFormat("tests/golden/%s_tokenizer.golden.json", GetParam()));
    golden_ = Json::parse(file);
    auto tokenizer = Tokenizer::Load(golden_["tokenizer"].get<std::string>());
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }

  Ids Encode(const std::string& text, EncodeOptions options) const {
    const auto ids = tokenizer_->Encode(text, options);
    EXPECT_TRUE(ids.ok()) << ids.status();
    return ids.value_or(Ids{-1});
  }

  Json golden_;
  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_P(TokenizerGolden, GivesTheSameIds) {
  ASSERT_GE(golden_["cases"].size(), 2000u);
  EXPECT_EQ(tokenizer_->vocab_size(), golden_["vocab_size"].get<int>());
  for (const Json& test_case : golden_["cases"]) {
    const std::string text = test_case[0].get<std::string>();
    const Ids expected = test_case[1].get<Ids>();
    EXPECT_EQ(Encode(text, {.parse_special = true, .add_bos = false}), expected) << test_case[0];
    EXPECT_EQ(Encode(text, {.parse_special = false, .add_bos = false}), expected) << test_case[0];
  }
}

TEST_P(TokenizerGolden, DecodesToTheTextAgain) {
  for (const Json& test_case : golden_["cases"]) {
    EXPECT_EQ(tokenizer_->Decode(test_case[1].get<Ids>()), test_case[0].get<std::string>()) << test_case[0];
  }
}

TEST_P(TokenizerGolden, EncodesAMebibyteOfOneLetterWithinSeconds) {
  for (const Json& test_case : golden_["repeats"]) {
    const std::string part = test_case["repeat"].get<std::string>();
    std::string text;
    for (int i = 0; i < test_case["count"].get<int>(); ++i) text += part;
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = Encode(text, {.add_bos = false});
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_EQ(ids.size(), test_case["id_count"].get<size_t>()) << test_case["repeat"];
    EXPECT_EQ(HashIds(ids), test_case["hash"].get<std::string>()) << test_case["repeat"];
    EXPECT_LT(seconds.count(), 20) << test_case["repeat"];
  }
}

TEST_P(TokenizerGolden, MakesAddedTokensOnlyIfAsked) {
  ASSERT_FALSE(golden_["special"].empty());
  for (const Json& test_case : golden_["special"]) {
    const std::string text = test_case["text"].get<std::string>();
    EXPECT_EQ(Encode(text, {.parse_special = true, .add_bos = false}), test_case["parsed"].get<Ids>())
        << text;
    EXPECT_EQ(Encode(text, {.parse_special = false, .add_bos = false}), test_case["plain"].get<Ids>())
        << text;
  }
}

TEST_P(TokenizerGolden, PutsBosInFrontAsTheFileSays) {
  EXPECT_EQ(Encode("a", {}), golden_["with_bos"].get<Ids>());
  EXPECT_EQ(tokenizer_->adds_bos(), golden_.value("adds_bos", true));
}

// Decodes all ids at once, and one id at a time through a detokenizer.
TEST_P(TokenizerGolden, DecodesAnyIdsAlike) {
  for (const Json& test_case : golden_["decodes"]) {
    const Ids ids = test_case["ids"].get<Ids>();
    EXPECT_EQ(tokenizer_->Decode(ids, true), test_case["text"].get<std::string>()) << test_case;
    EXPECT_EQ(tokenizer_->Decode(ids, false), test_case["with_special"].get<std::string>()) << test_case;
    Detokenizer detokenizer(*tokenizer_);
    std::string text;
    for (const int32_t id : ids) text += detokenizer.Append({&id, 1});
    EXPECT_EQ(text + detokenizer.Flush(), test_case["text"].get<std::string>()) << test_case;
  }
}

TEST_P(TokenizerGolden, RendersChatsAsTheTemplateDoes) {
  const auto format = ChatFormat::Create(*tokenizer_);
  ASSERT_TRUE(format.ok()) << format.status();
  for (const Json& test_case : golden_["chats"]) {
    std::vector<ChatMessage> messages;
    for (const Json& message : test_case["messages"]) {
      messages.push_back({message["role"].get<std::string>(), message["content"].get<std::string>()});
    }
    const auto ids = format->Render(messages);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, test_case["ids"].get<Ids>()) << test_case["messages"];
  }
}

INSTANTIATE_TEST_SUITE_P(, TokenizerGolden, testing::Values("big", "abacus", "tiktoken"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace foredraft
