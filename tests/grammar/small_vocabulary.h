#pragma once

#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "grammar/vocabulary.h"

namespace foredraft {

// All 256 bytes, then `words`, then the added tokens <a> and <b>, then the end token.
inline std::shared_ptr<const Vocabulary> SmallVocabulary(const std::vector<std::string>& words) {
  VocabularySource source;
  for (int byte = 0; byte < 256; ++byte) source.ordinary.emplace_back(1, static_cast<char>(byte));
  source.ordinary.insert(source.ordinary.end(), words.begin(), words.end());
  for (const char* added : {"<a>", "<b>", "<end>"}) {
    source.added.emplace_back(added, static_cast<int32_t>(source.ordinary.size()));
    source.ordinary.emplace_back();
  }
  source.end_ids = {static_cast<int32_t>(source.ordinary.size()) - 1};
  auto vocabulary = Vocabulary::Create(std::move(source));
  CHECK(vocabulary.ok()) << vocabulary.status().ToString();
  return *vocabulary;
}

// `count` words of 2 to `max_len` characters, each one of `alphabet`.
inline std::vector<std::string> RandomWords(const std::vector<std::string>& alphabet, int count, int max_len,
                                            std::mt19937& random) {
  std::vector<std::string> words;
  for (int i = 0; i < count; ++i) {
    std::string word;
    for (int length = 2 + static_cast<int>(random() % (max_len - 1)); length > 0; --length) {
      word += alphabet[random() % alphabet.size()];
    }
    words.push_back(word);
  }
  return words;
}

}  // namespace foredraft
