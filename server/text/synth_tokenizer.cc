#include "server/text/synth_tokenizer.h"

#include <nlohmann/json.hpp>
#include <set>

#include "server/text/byte_alphabet.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

// Allocates ids in order and skips those with a fixed meaning.
class FreeIds {
 public:
  FreeIds(int vocab_size, std::set<int> taken) : vocab_size_(vocab_size), taken_(std::move(taken)) {}
  // -1: the vocabulary is full.
  int Next() {
    while (taken_.count(next_) > 0) ++next_;
    return next_ < vocab_size_ ? next_++ : -1;
  }

 private:
  const int vocab_size_;
  const std::set<int> taken_;
  int next_ = 0;
};

std::string Utf8(char32_t letter) {
  std::string text;
  AppendUtf8(letter, text);
  return text;
}

Json AddedToken(int id, const std::string& content, bool special) {
  return {{"id", id},        {"content", content},  {"single_word", false}, {"lstrip", false},
          {"rstrip", false}, {"normalized", false}, {"special", special}};
}

}  // namespace

std::string SynthTokenizerJson(const SynthVocabulary& vocabulary) {
  Json added = Json::array();
  Json post_processor = nullptr;
  std::set<int> fixed;
  if (vocabulary.bos_id >= 0) {
    const std::string bos = "<｜begin▁of▁sentence｜>";
    fixed.insert(vocabulary.bos_id);
    added.push_back(AddedToken(vocabulary.bos_id, bos, true));
    post_processor = {
        {"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", bos}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"pair", Json::array()},
        {"special_tokens", {{bos, {{"id", bos}, {"ids", {vocabulary.bos_id}}, {"tokens", {bos}}}}}}};
  }
  if (vocabulary.eos_id >= 0 && fixed.insert(vocabulary.eos_id).second) {
    added.push_back(AddedToken(vocabulary.eos_id, "<｜end▁of▁sentence｜>", true));
  }
  FreeIds ids(vocabulary.size, fixed);
  Json vocab = Json::object();
  // Without room for all bytes, printable ASCII comes first.
  const int first_byte = vocabulary.size - static_cast<int>(fixed.size()) < 256 ? ' ' : 0;
  for (int i = 0; i < 256; ++i) {
    const int id = ids.Next();
    if (id >= 0) vocab[Utf8(ByteAlphabet()[(first_byte + i) % 256])] = id;
  }
  for (const char* content : {"<｜User｜>", "<｜Assistant｜>", "<think>", "</think>"}) {
    const int id = ids.Next();
    if (id >= 0) added.push_back(AddedToken(id, content, content[1] != 't' && content[1] != '/'));
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  Json tokenizer = {{"version", "1.0"},
                    {"added_tokens", added},
                    {"normalizer", nullptr},
                    {"pre_tokenizer", byte_level},
                    {"post_processor", post_processor},
                    {"decoder", byte_level}};
  tokenizer["model"] = {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}};
  return tokenizer.dump(1) + "\n";
}

}  // namespace foredraft
