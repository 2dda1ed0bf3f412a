#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "grammar/vocabulary.h"

namespace foredraft {

// A vocabulary of the size and kind of DeepSeek-V3's: bytes, the most frequent pieces of given texts, numbers
// of up to three digits, runs of spaces, Chinese words, and made-up words. The same texts give the same
// vocabulary.
class LargeVocabulary {
 public:
  LargeVocabulary(const std::vector<std::string>& texts, int size);

  const std::shared_ptr<const Vocabulary>& vocabulary() const { return vocabulary_; }
  int32_t end_id() const { return vocabulary_->end_ids()[0]; }
  // Always the longest token that fits.
  std::vector<int32_t> Encode(std::string_view text) const;

 private:
  void Add(std::string bytes);

  std::vector<std::string> tokens_;
  std::unordered_map<std::string, int32_t> ids_;
  size_t longest_ = 1;
  std::shared_ptr<const Vocabulary> vocabulary_;
};

}  // namespace foredraft
