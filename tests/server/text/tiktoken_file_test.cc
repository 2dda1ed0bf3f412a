#include "server/text/tiktoken_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "server/text/tokenizer.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Ids = std::vector<int32_t>;

// The lines of these tokens, whose ranks are their places.
std::string Lines(const std::vector<std::string>& tokens) {
  std::string lines;
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    absl::StrAppend(&lines, absl::Base64Escape(tokens[rank]), " ", rank, "\n");
  }
  return lines;
}

// Every byte by its value, and these behind them.
std::vector<std::string> WithBytes(const std::vector<std::string>& more) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

Ids Encoded(const std::vector<std::string>& more, const std::string& text) {
  const auto tokenizer = Tokenizer::ParseTiktoken(Lines(WithBytes(more)), "");
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *(*tokenizer)->Encode(text) : Ids();
}

TEST(TiktokenFile, MergesWhateverNeighboursAreATokenTogether) {
  // "abc" is made of ab and c or of a and bc, whichever two meet.
  EXPECT_THAT(Encoded({"bc", "abc"}, "xabc"), ElementsAre('x', 257));
  EXPECT_THAT(Encoded({"ab", "bc", "abc"}, "xabc"), ElementsAre('x', 258));
  // The lowest rank first, the leftmost among equals.
  EXPECT_THAT(Encoded({"bc", "ab"}, "xabc"), ElementsAre('x', 'a', 256));
  EXPECT_THAT(Encoded({"aa"}, "xaaa"), ElementsAre('x', 256, 'a'));
}

TEST(TiktokenFile, APieceThatIsATokenIsOneWithoutMerges) {
  EXPECT_THAT(Encoded({"abcd"}, "abcd"), ElementsAre(256));
  EXPECT_THAT(Encoded({"abcd"}, "xabcd"), ElementsAre('x', 'a', 'b', 'c', 'd'));
  EXPECT_THAT(Encoded({" abcd"}, "1 abcd"), ElementsAre('1', 256));  // the regex cuts in front of the space
}

TEST(TiktokenFile, SpecialTokensFollowTheRanks) {
  const std::string config = R"({"added_tokens_decoder": {
      "256": {"content": "[BOS]", "special": true}, "258": {"content": "<think>", "special": false}},
      "bos_token": "[BOS]", "eos_token": {"content": "<think>"}})";
  const auto tokenizer = Tokenizer::ParseTiktoken(Lines(WithBytes({})), config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const Tokenizer& kimi = **tokenizer;
  EXPECT_EQ(kimi.vocab_size(), 512);
  EXPECT_EQ(kimi.bos_id(), 256);
  EXPECT_EQ(kimi.eos_id(), 258);
  EXPECT_FALSE(kimi.adds_bos());
  EXPECT_EQ(kimi.AddedTokenId("<|reserved_token_257|>"), 257);
  EXPECT_EQ(kimi.AddedTokenId("<|reserved_token_258|>"), std::nullopt);
  EXPECT_THAT(*kimi.Encode("<think>[BOS]<|reserved_token_511|>", {.parse_special = true}),
              ElementsAre(258, 256, 511));
  EXPECT_EQ(kimi.Decode(Ids{258, 'a', 256, 511}), "<think>a");
}

// The status's text for `model` with a tokenizer_config.json.
std::string Refusal(const std::string& model, const std::string& config = "") {
  const auto tokenizer = Tokenizer::ParseTiktoken(model, config);
  EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(tokenizer.status().message());
}

TEST(TiktokenFile, RefusesWhatIsNoVocabulary) {
  const std::string good = Lines(WithBytes({"ab"}));
  EXPECT_EQ(Refusal(""), "tiktoken.model: no token for byte 0x00, allowed a token for each byte");
  EXPECT_EQ(Refusal(good + "\n\nYWI= x\n"), "tiktoken.model: line 260: rank \"x\", allowed 0..1048319");
  for (const char* rank : {"", "-1", "1048320", "99999999999", "1 2"}) {
    EXPECT_THAT(Refusal(absl::StrCat("YWI= ", rank, "\n")), HasSubstr("tiktoken.model: line 1: rank \""))
        << rank;
  }
  for (const char* line : {"YWI=", "@@@ 1", " 1"}) {
    EXPECT_EQ(Refusal(line),
              "tiktoken.model: line 1: allowed the bytes of a token in base64, a space and its rank");
  }
  EXPECT_EQ(Refusal(good + "YWM= 256\n"),
            "tiktoken.model: line 258: rank 256, which another line has already");
  EXPECT_EQ(Refusal(good + "YWI= 257\n"), "tiktoken.model: ranks 256 and 257 are the same bytes, \"ab\"");
  EXPECT_EQ(Refusal(good + "YWM= 258\n"),
            "tiktoken.model: 258 tokens with ranks up to 258, allowed the ranks from 0 on without a gap");
  EXPECT_EQ(Refusal(good + absl::Base64Escape(std::string(1025, 'a')) + " 257\n"),
            "tiktoken.model: line 258: a token of 1025 bytes, allowed at most 1024");
}

TEST(TiktokenFile, RefusesSpecialTokensByTheirIds) {
  const std::string good = Lines(WithBytes({}));
  const auto refusal = [&good](const std::string& tokens) {
    return Refusal(good, "{\"added_tokens_decoder\": " + tokens + "}");
  };
  EXPECT_EQ(
      refusal(R"({"255": {"content": "x"}})"),
      "tiktoken.model: 256 ranks, and added_tokens_decoder of tokenizer_config.json names the special token "
      "255, allowed 256..511");
  EXPECT_THAT(refusal(R"({"512": {"content": "x"}})"), HasSubstr("512, allowed 256..511"));
  EXPECT_EQ(refusal(R"({"256": {"content": "x"}, "257": {"content": "x"}})"),
            "tiktoken.model: the special tokens 256 and 257 are both \"x\", allowed different ones");
  EXPECT_EQ(refusal("[]"),
            "tokenizer_config.json: added_tokens_decoder: [], allowed an object of tokens by their ids");
  EXPECT_EQ(
      refusal(R"({"256": {"content": ""}})"),
      "tokenizer_config.json: added_tokens_decoder.256.content: \"\", allowed a token that is not empty");
  EXPECT_EQ(refusal(R"({"256": {"content": "x", "lstrip": true}})"),
            "tokenizer_config.json: added_tokens_decoder.256.lstrip: true, allowed false");
  for (const char* id : {"x", "0256", "-1", "1048576", ""}) {
    EXPECT_THAT(refusal(absl::StrCat("{\"", id, "\": {\"content\": \"x\"}}")),
                HasSubstr("tokenizer_config.json: added_tokens_decoder."))
        << id;
  }
}

TEST(TiktokenFile, IsReadWhereThereIsNoTokenizerJson) {
  const std::string dir = testing::TempDir() + "/tiktoken_file";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  EXPECT_EQ(TokenizerFileOf(dir), dir + "/tokenizer.json");
  std::ofstream(dir + "/tiktoken.model") << Lines(WithBytes({"ab"}));
  std::ofstream(dir + "/chat_template.jinja") << kKimi26Template;
  EXPECT_EQ(TokenizerFileOf(dir), dir + "/tiktoken.model");
  const auto tokenizer = Tokenizer::Load(TokenizerFileOf(dir));
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("ab"), ElementsAre(256));
  EXPECT_EQ((*tokenizer)->chat_template(), kKimi26Template);
  std::ofstream(dir + "/tokenizer.json") << "{}";
  EXPECT_EQ(TokenizerFileOf(dir), dir + "/tokenizer.json");
}

}  // namespace
}  // namespace foredraft
