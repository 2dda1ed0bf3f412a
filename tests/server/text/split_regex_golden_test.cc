// Character classes and Kimi-K2's pre-tokenizer against Hugging Face's tokenizers
// (tests/golden/make_regex_golden.py).

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "server/text/split_regex.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

using Json = nlohmann::json;

std::vector<size_t> PieceBytes(const SplitRegex& regex, std::string_view text) {
  RegexScratch scratch;
  std::vector<std::string_view> pieces;
  const absl::Status status = regex.Split(text, scratch, pieces);
  EXPECT_TRUE(status.ok()) << status;
  std::vector<size_t> bytes;
  for (const std::string_view piece : pieces) bytes.push_back(piece.size());
  return bytes;
}

// FNV-1a, a 64-bit word at a time.
std::string Hash(const std::vector<size_t>& words) {
  uint64_t value = 0xCBF29CE484222325;
  for (const size_t word : words) value = (value ^ word) * 0x100000001B3;
  return absl::StrFormat("%016x", value);
}

class SplitRegexGolden : public ::testing::Test {
 protected:
  void SetUp() override {
    std::ifstream file("tests/golden/regex_classes.golden.json");
    golden_ = Json::parse(file, nullptr, /*allow_exceptions=*/false);
    ASSERT_TRUE(golden_.is_object());
  }
  Json golden_;
};

TEST_F(SplitRegexGolden, ClassesHaveOnigurumasCharacters) {
  std::string every;
  for (char32_t c = 1; c < 0x110000; ++c) {
    if (c < 0xD800 || c >= 0xE000) AppendUtf8(c, every);
  }
  ASSERT_EQ(golden_["classes"].size(), 13u);
  for (const auto& [pattern, hash] : golden_["classes"].items()) {
    const auto regex = SplitRegex::Compile(pattern);
    ASSERT_TRUE(regex.ok()) << regex.status();
    EXPECT_EQ(Hash(PieceBytes(*regex, every)), hash.get<std::string>()) << pattern;
  }
}

TEST_F(SplitRegexGolden, KimisPreTokenizerCutsAsOniguruma) {
  const auto regex = SplitRegex::Compile(golden_["kimi"].get<std::string>());
  ASSERT_TRUE(regex.ok()) << regex.status();
  ASSERT_GT(golden_["texts"].size(), 200u);
  for (const Json& test_case : golden_["texts"]) {
    EXPECT_EQ(PieceBytes(*regex, test_case[0].get<std::string>()), test_case[1].get<std::vector<size_t>>())
        << test_case[0];
  }
}

}  // namespace
}  // namespace foredraft
