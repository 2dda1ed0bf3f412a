#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace foredraft {

// The set of tokens that one row may choose. A plain value, in the shorter of two forms. Ids from vocab_size
// on, the padding of logits, are never in it.
struct TokenMask {
  int32_t vocab_size = 0;
  int32_t count = 0;         // of allowed tokens
  std::vector<int32_t> ids;  // ascending; empty where `words` is used
  std::vector<uint32_t>
      words;  // [vocab_size / 32, rounded up]: bit v % 32 of word v / 32; empty where `ids` is used

  bool is_list() const { return words.empty(); }
  bool Allows(int32_t id) const {
    if (id < 0 || id >= vocab_size) return false;
    if (is_list()) return std::binary_search(ids.begin(), ids.end(), id);
    return words[id / 32] >> (id % 32) & 1;
  }
  int64_t byte_count() const {
    return static_cast<int64_t>(4 * (ids.size() + words.size()) + sizeof(TokenMask));
  }
};

}  // namespace foredraft
