#pragma once

// Finds the added tokens of a tokenizer.json ("<｜User｜>", "</think>") written out in text.

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace foredraft {

// A piece of text: an added token, or the plain text between two of them.
struct TextSegment {
  std::string_view text;
  int32_t added_id;  // -1 = plain text
};

// Immutable once filled; thread-safe.
class AddedTokens {
 public:
  // `content` is not empty. `normalized` tokens are searched for after the others, in the text between those.
  void Add(std::string_view content, int32_t id, bool normalized);

  // Splits `text` at its added tokens: the leftmost match first; of matches at one position, the longest.
  std::vector<TextSegment> Cut(std::string_view text) const;

 private:
  // A trie over bytes. Node 0 is the root.
  struct Trie {
    absl::flat_hash_map<uint64_t, int32_t> children;  // node << 8 | byte -> node
    std::vector<int32_t> ids = {-1};                  // by node; -1 = no token ends here

    void Add(std::string_view content, int32_t id);
    TextSegment LongestAt(std::string_view text) const;  // an empty text = none
    void Cut(std::string_view text, std::vector<TextSegment>& segments) const;
  };

  Trie raw_;
  Trie normalized_;
};

}  // namespace foredraft
