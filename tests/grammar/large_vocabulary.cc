#include "tests/grammar/large_vocabulary.h"

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/ascii.h"
#include "base/check.h"
#include "grammar/char_set.h"

namespace foredraft {
namespace {

enum CharKind { kLetter, kDigit, kSpace, kOther };

CharKind KindOf(char c) {
  const unsigned char byte = static_cast<unsigned char>(c);
  if (byte >= 0x80 || absl::ascii_isalpha(byte)) return kLetter;
  if (absl::ascii_isdigit(byte)) return kDigit;
  return absl::ascii_isspace(byte) ? kSpace : kOther;
}

// Words and runs of marks, each with a space before it, as tokenizers cut text before they merge.
void CountPieces(std::string_view text, std::map<std::string, int64_t>& counts) {
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    if (text[end] == ' ' && end + 1 < text.size() && KindOf(text[end + 1]) != kSpace) ++end;
    const CharKind kind = KindOf(text[end]);
    const size_t longest = kind == kDigit ? 3 : 24;
    while (end < text.size() && KindOf(text[end]) == kind && end - begin < longest) ++end;
    // Byte pair merges leave the beginnings of frequent pieces in a vocabulary, too.
    for (size_t length = 2; length <= end - begin; ++length) {
      counts[std::string(text.substr(begin, length))] += length == end - begin ? 4 : 1;
    }
    begin = end;
  }
}

std::string MadeUpWord(std::mt19937& random) {
  static constexpr const char* kSyllables[] = {"an", "ber", "con", "der", "es", "fi",  "gra", "ing", "ju",
                                               "ka", "lo",  "men", "ni",  "or", "pre", "qui", "re",  "sta",
                                               "ti", "un",  "ver", "wa",  "xe", "y",   "zo"};
  std::string word = random() % 2 == 0 ? " " : "";
  for (int n = 2 + static_cast<int>(random() % 3); n > 0; --n)
    word += kSyllables[random() % std::size(kSyllables)];
  if (random() % 4 == 0)
    word[word[0] == ' '] = absl::ascii_toupper(static_cast<unsigned char>(word[word[0] == ' ']));
  return word;
}

std::string ChineseWord(std::mt19937& random) {
  std::string word;
  for (int n = 1 + static_cast<int>(random() % 3); n > 0; --n)
    AppendCodePoint(0x4E00 + random() % 3000, word);
  return word;
}

}  // namespace

void LargeVocabulary::Add(std::string bytes) {
  const auto [place, is_new] = ids_.try_emplace(std::move(bytes), static_cast<int32_t>(tokens_.size()));
  if (!is_new) return;
  tokens_.push_back(place->first);
  longest_ = std::max(longest_, place->first.size());
}

LargeVocabulary::LargeVocabulary(const std::vector<std::string>& texts, int size) {
  for (int byte = 0; byte < 256; ++byte) Add(std::string(1, static_cast<char>(byte)));
  for (int number = 0; number < 1000; ++number) {
    for (size_t digits = 1; digits <= 3; ++digits) {
      const std::string text = std::to_string(number);
      if (text.size() <= digits) Add(std::string(digits - text.size(), '0') + text);
    }
  }
  for (const char c : {' ', '\t', '\n', '-', '=', '*'}) {
    for (int count = 2; count <= 128; count += count < 16 ? 1 : 16)
      Add(std::string(static_cast<size_t>(count), c));
  }
  std::map<std::string, int64_t> counts;
  for (const std::string& text : texts) CountPieces(text, counts);
  std::vector<std::pair<int64_t, std::string>> frequent;
  for (const auto& [piece, count] : counts) frequent.emplace_back(-count, piece);
  std::sort(frequent.begin(), frequent.end());
  for (const auto& [count, piece] : frequent) {
    if (static_cast<int>(tokens_.size()) > size / 2) break;
    Add(piece);
  }
  std::mt19937 random(7);
  while (static_cast<int>(tokens_.size()) < size - 1)
    Add(random() % 2 == 0 ? ChineseWord(random) : MadeUpWord(random));
  VocabularySource source;
  source.ordinary = tokens_;
  source.ordinary.emplace_back();
  source.added = {{"<end>", size - 1}};
  source.end_ids = {size - 1};
  auto vocabulary = Vocabulary::Create(std::move(source));
  CHECK(vocabulary.ok()) << vocabulary.status().ToString();
  vocabulary_ = *vocabulary;
}

std::vector<int32_t> LargeVocabulary::Encode(std::string_view text) const {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    size_t length = std::min(longest_, text.size());
    auto place = ids_.find(std::string(text.substr(0, length)));
    while (place == ids_.end()) place = ids_.find(std::string(text.substr(0, --length)));
    ids.push_back(place->second);
    text.remove_prefix(length);
  }
  return ids;
}

}  // namespace foredraft
