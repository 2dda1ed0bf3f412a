#include "server/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "server/text/byte_alphabet.h"
#include "server/text/detokenizer.h"
#include "server/text/synth_tokenizer.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

// The bytes are ids 0..255, then "he" 256, "el" 257, "hel" 258, "lo" 259; added: <s> 300, </s> 301 and R1's
// markup.
Json SmallTokenizer() {
  Json vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string letter;
    AppendUtf8(ByteAlphabet()[byte], letter);
    vocab[letter] = byte;
  }
  vocab.update(Json{{"he", 256}, {"el", 257}, {"hel", 258}, {"lo", 259}});
  const auto added = [](int id, const char* content, bool special) {
    return Json{{"id", id},        {"content", content}, {"special", special},  {"normalized", false},
                {"lstrip", false}, {"rstrip", false},    {"single_word", false}};
  };
  return {
      {"added_tokens",
       {added(300, "<s>", true), added(301, "</s>", true), added(302, "<｜User｜>", true),
        added(303, "<｜Assistant｜>", true), added(304, "<think>", false), added(305, "</think>", false)}},
      {"normalizer", nullptr},
      {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}}},
      {"post_processor", nullptr},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"e l", "h el", "h e", "l o"}}}}};
}

const char kConfig[] = R"({"bos_token": "<s>", "eos_token": {"content": "</s>"}, "add_bos_token": true})";

std::unique_ptr<Tokenizer> Parse(const Json& json, std::string_view config = kConfig) {
  auto tokenizer = Tokenizer::Parse(json.dump(), config);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

TEST(Tokenizer, MergesByRankFromTheLeft) {
  const auto tokenizer = Parse(SmallTokenizer());
  // "hello": e l first, then h el; "he" is never merged.
  EXPECT_THAT(*tokenizer->Encode("hello", {.add_bos = false}), ElementsAre(258, 259));
  EXPECT_THAT(*tokenizer->Encode("heh", {.add_bos = false}), ElementsAre(256, 'h'));
}

TEST(Tokenizer, TakesAWholePieceBeforeMergesIfTheFileSaysSo) {
  Json json = SmallTokenizer();
  json["model"]["vocab"]["xyz"] = 260;
  EXPECT_THAT(*Parse(json)->Encode("xyz", {.add_bos = false}), ElementsAre('x', 'y', 'z'));
  json["model"]["ignore_merges"] = true;
  EXPECT_THAT(*Parse(json)->Encode("xyz", {.add_bos = false}), ElementsAre(260));
}

TEST(Tokenizer, AddsBosAsTheCheckpointSays) {
  Json json = SmallTokenizer();
  EXPECT_THAT(*Parse(json)->Encode("h"), ElementsAre(300, 'h'));
  EXPECT_THAT(*Parse(json)->Encode(""), ElementsAre(300));
  EXPECT_THAT(*Parse(json, R"({"bos_token": "<s>"})")->Encode("h"), ElementsAre('h'));
  EXPECT_THAT(*Parse(json, "")->Encode("h"), ElementsAre('h'));
  json["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}},
        {{"type", "TemplateProcessing"},
         {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
         {"special_tokens", {{"<s>", {{"ids", {300}}}}}}}}}};
  EXPECT_THAT(*Parse(json, "")->Encode("h"), ElementsAre(300, 'h'));
  // tokenizer_config.json overrides tokenizer.json, as in transformers.
  EXPECT_THAT(*Parse(json, R"({"add_bos_token": false})")->Encode("h"), ElementsAre('h'));
}

TEST(Tokenizer, KnowsItsTokens) {
  const auto tokenizer = Parse(SmallTokenizer());
  EXPECT_EQ(tokenizer->vocab_size(), 306);
  EXPECT_EQ(tokenizer->bos_id(), 300);
  EXPECT_EQ(tokenizer->eos_id(), 301);
  EXPECT_EQ(tokenizer->AddedTokenId("</think>"), 305);
  EXPECT_EQ(tokenizer->AddedTokenId("hel"), std::nullopt);
  EXPECT_EQ(tokenizer->TokenBytes(258), "hel");
  EXPECT_EQ(tokenizer->TokenBytes(0xE9), "\xE9");
  for (const int32_t id : {-1, 270, 306, INT32_MAX}) EXPECT_EQ(tokenizer->TokenBytes(id), "") << id;
  EXPECT_TRUE(tokenizer->IsSpecial(302));
  EXPECT_FALSE(tokenizer->IsSpecial(304));
  EXPECT_FALSE(tokenizer->IsSpecial(100000));
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  const auto ids = Parse(SmallTokenizer())->Encode("ab\xFF");
  EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(ids.status().message()), HasSubstr("not UTF-8 at byte 2"));
}

TEST(Tokenizer, DecodesUnknownIdsToNothing) {
  EXPECT_EQ(Parse(SmallTokenizer())->Decode(Ids{-5, 'a', 270, 99999, 'b'}), "ab");
}

TEST(Detokenizer, ShowsACharacterWhenItIsComplete) {
  const auto tokenizer = Parse(SmallTokenizer());
  Detokenizer detokenizer(*tokenizer);
  EXPECT_EQ(detokenizer.Append(Ids{300, 304, 0xF0, 0x9F}), "<think>");
  EXPECT_EQ(detokenizer.Append({}), "");
  EXPECT_EQ(detokenizer.Append(Ids{0x98}), "");
  EXPECT_EQ(detokenizer.Append(Ids{0x80, 'a', 0xC3, 301}), "\U0001F600a");
  EXPECT_EQ(detokenizer.Append(Ids{'b'}),
            "\ufffd"
            "b");
  EXPECT_EQ(detokenizer.Append(Ids{0xE4}), "");
  EXPECT_EQ(detokenizer.Flush(), "\ufffd");
}

struct RefusedFile {
  const char* name;
  const char* pointer;  // JSON pointer of the field to set
  Json value;
  const char* message;
};

const RefusedFile kRefusedFiles[] = {
    {"Model", "/model/type", "Unigram", R"(model.type: "Unigram", allowed BPE)"},
    {"ByteFallback", "/model/byte_fallback", true, "model.byte_fallback: true, allowed false"},
    {"Prefix", "/model/continuing_subword_prefix", "##", "model.continuing_subword_prefix"},
    {"Suffix", "/model/end_of_word_suffix", "</w>", "model.end_of_word_suffix"},
    {"Dropout", "/model/dropout", 0.1, "model.dropout: 0.1"},
    {"NoVocab", "/model/vocab", Json::array(), "model.vocab: []"},
    {"NegativeId", "/model/vocab/zz", -1, "model.vocab[\"zz\"]: -1"},
    {"HugeId", "/model/vocab/zz", 18446744073709551615u, "allowed 0..1048575"},
    {"FractionalId", "/model/vocab/zz", 1.5, "allowed a token id"},
    {"IdTwice", "/model/vocab/zz", 256, "has id 256"},
    {"MissingByte", "/model/vocab", Json::object(), "for byte 0x00"},
    {"UnknownMerge", "/model/merges/0", "q q", "model.merges[0]: \"qq\" is not in model.vocab"},
    {"MergeOfOne", "/model/merges/0", "q", "model.merges[0]: \"q\", allowed two tokens"},
    {"MergeOfThree", "/model/merges/0", {"a", "b", "c"}, "allowed two tokens"},
    {"Lstrip", "/added_tokens/0/lstrip", true, "added_tokens[0].lstrip: true"},
    {"SingleWord", "/added_tokens/1/single_word", true, "added_tokens[1].single_word: true"},
    {"NoContent", "/added_tokens/0/content", "", "a token that is not empty"},
    {"AddedTwice", "/added_tokens/1/content", "<s>", "added_tokens[1].content"},
    {"AddedOnAnother", "/added_tokens/0/id", 5, "has id 5"},
    {"AddedElsewhere", "/added_tokens/0/content", "hel", "258, its id in model.vocab"},
    {"Normalizer", "/normalizer", {{"type", "NFC"}}, R"(normalizer.type: "NFC")"},
    {"NormalizerSequence",
     "/normalizer",
     {{"type", "Sequence"}, {"normalizers", {{{"type", "NFC"}}}}},
     "NFC"},
    {"PreTokenizer", "/pre_tokenizer", {{"type", "Metaspace"}}, R"(pre_tokenizer.type: "Metaspace")"},
    {"NoPreTokenizer", "/pre_tokenizer", nullptr, "pre_tokenizer"},
    {"PrefixSpace", "/pre_tokenizer/add_prefix_space", true, "pre_tokenizer.add_prefix_space: true"},
    {"Behavior",
     "/pre_tokenizer",
     {{"type", "Split"}, {"behavior", "Removed"}, {"invert", false}, {"pattern", {{"Regex", "a"}}}},
     R"(pre_tokenizer.behavior: "Removed")"},
    {"Invert",
     "/pre_tokenizer",
     {{"type", "Split"}, {"behavior", "Isolated"}, {"invert", true}, {"pattern", {{"Regex", "a"}}}},
     "pre_tokenizer.invert: true"},
    {"Decoder", "/decoder", {{"type", "WordPiece"}}, R"(decoder.type: "WordPiece")"},
    {"PostProcessor",
     "/post_processor",
     {{"type", "BertProcessing"}},
     R"(post_processor.type: "BertProcessing")"},
    {"Template",
     "/post_processor",
     {{"type", "TemplateProcessing"},
      {"single", {{{"Sequence", {{"id", "A"}}}}, {{"SpecialToken", {{"id", "x"}}}}}}},
     "post_processor.single"},
    {"TemplateId",
     "/post_processor",
     {{"type", "TemplateProcessing"},
      {"single", {{{"SpecialToken", {{"id", "x"}}}}, {{"Sequence", {{"id", "A"}}}}}},
      {"special_tokens", {{"x", {{"ids", {280}}}}}}},
     "280, allowed the id of a token"},
};

TEST(Tokenizer, NamesTheUnsupportedField) {
  for (const RefusedFile& test_case : kRefusedFiles) {
    Json json = SmallTokenizer();
    json[Json::json_pointer(test_case.pointer)] = test_case.value;
    const auto tokenizer = Tokenizer::Parse(json.dump(), "");
    ASSERT_FALSE(tokenizer.ok()) << test_case.name;
    EXPECT_EQ(tokenizer.status().code(), absl::StatusCode::kInvalidArgument) << test_case.name;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("tokenizer.json: ")) << test_case.name;
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(test_case.message)) << test_case.name;
  }
}

TEST(Tokenizer, RefusesBrokenFiles) {
  EXPECT_THAT(std::string(Tokenizer::Parse("{\"model\": ", "").status().message()), HasSubstr("not JSON"));
  EXPECT_THAT(std::string(Tokenizer::Parse("[]", "").status().message()), HasSubstr("not a JSON object"));
  const std::string deep(1'000'000, '[');
  EXPECT_THAT(std::string(Tokenizer::Parse("{\"model\": " + deep, "").status().message()),
              HasSubstr("tokenizer.json: text: nested deeper than 64"));
  const std::string good = SmallTokenizer().dump();
  EXPECT_THAT(std::string(Tokenizer::Parse(good, "{\"chat_template\": " + deep).status().message()),
              HasSubstr("tokenizer_config.json: text: nested deeper than 64"));
  EXPECT_THAT(std::string(Tokenizer::Load("/dev/zero").status().message()),
              HasSubstr("/dev/zero: not a regular file"));
  EXPECT_THAT(std::string(Tokenizer::Parse(good, "x").status().message()),
              HasSubstr("tokenizer_config.json"));
  EXPECT_THAT(std::string(Tokenizer::Parse(good, R"({"bos_token": "<no>"})").status().message()),
              HasSubstr("bos_token: \"<no>\""));
  EXPECT_THAT(std::string(Tokenizer::Parse(good, R"({"add_eos_token": true})").status().message()),
              HasSubstr("add_eos_token: true"));
  EXPECT_THAT(std::string(Tokenizer::Parse(good, R"({"add_bos_token": true})").status().message()),
              HasSubstr("add_bos_token: true"));
  EXPECT_EQ(Tokenizer::Load("/no/such/tokenizer.json").status().code(), absl::StatusCode::kNotFound);
}

TEST(Tokenizer, LoadsTheFilesOfAFolder) {
  const std::filesystem::path folder =
      std::filesystem::path(testing::TempDir()) / "loads_the_files_of_a_folder";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "tokenizer.json") << SmallTokenizer().dump();
  std::ofstream(folder / "tokenizer_config.json") << R"({"bos_token": "<s>", "chat_template": "old"})";
  auto tokenizer = Tokenizer::Load(folder / "tokenizer.json");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->chat_template(), "old");
  EXPECT_EQ((*tokenizer)->bos_id(), 300);
  std::ofstream(folder / "chat_template.jinja") << "new";
  EXPECT_EQ((*Tokenizer::Load(folder / "tokenizer.json"))->chat_template(), "new");
  std::filesystem::remove_all(folder);
}

TEST(Tokenizer, ASmallVocabularyRefusesTextOfOtherBytes) {
  const auto tokenizer = Tokenizer::Parse(SynthTokenizerJson({.size = 100, .bos_id = 0, .eos_id = 1}), "");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 100);
  EXPECT_THAT(*(*tokenizer)->Encode(" ~"), ElementsAre(0, 2, 96));
  EXPECT_EQ((*tokenizer)->Decode(Ids{2, 96}), " ~");
  EXPECT_EQ(std::string((*tokenizer)->Encode("a\n").status().message()),
            "byte 0x0A has no token in this small vocabulary");
}

TEST(Tokenizer, FindsTheChatTemplateInItsFiles) {
  const std::filesystem::path dir = std::filesystem::path(testing::TempDir()) / "finds_the_chat_template";
  std::filesystem::remove_all(dir);
  std::filesystem::create_directories(dir);
  const auto write = [&dir](const char* name, const std::string& text) { std::ofstream(dir / name) << text; };
  const auto load = [&dir] {
    auto tokenizer = Tokenizer::Load((dir / "tokenizer.json").string());
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  };
  write("tokenizer.json", SmallTokenizer().dump());
  EXPECT_EQ(load()->chat_template(), std::nullopt);
  const Json list = {{{"name", "tool_use"}, {"template", "t"}},
                     {{"name", "default"}, {"template", "d"}},
                     {{"name", "x"}},
                     5};
  write("tokenizer_config.json", Json{{"chat_template", list}}.dump());
  EXPECT_EQ(load()->chat_template(), "d");
  EXPECT_EQ(load()->tool_template(), "t");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "r"}]})");
  EXPECT_EQ(load()->chat_template(), "") << "none of a list's is meant for chat";
  write("chat_template.json", R"({"chat_template": "j"})");
  EXPECT_EQ(load()->chat_template(), "j");
  EXPECT_EQ(load()->tool_template(), std::nullopt);
  write("chat_template.jinja", "n");
  EXPECT_EQ(load()->chat_template(), "n");
  std::filesystem::remove(dir / "chat_template.jinja");
  write("chat_template.json", "{broken");
  EXPECT_THAT(std::string(Tokenizer::Load((dir / "tokenizer.json").string()).status().message()),
              HasSubstr("chat_template.json: "));
}

}  // namespace
}  // namespace foredraft
