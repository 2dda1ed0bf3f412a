#pragma once

// Finds the block that holds given prompt tokens after a given prefix: a tree of full blocks under the root
// (the empty prefix). Tokens are compared, not only their hash, and a child names its parent by an id that is
// never used again, so a hit is always the same prefix. Owner: RankState, one per rank. Thread: scheduler.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/container/flat_hash_set.h"

namespace foredraft {

class PrefixIndex {
 public:
  static constexpr uint64_t kRoot = 0;
  // The empty prefix of `scope`, which is below 2^63. Prefixes of different scopes are never equal, and ids
  // of nodes never reach these numbers.
  static constexpr uint64_t RootOf(uint64_t scope) {
    return scope == 0 ? kRoot : (uint64_t{1} << 63) + scope;
  }

  struct Node {
    uint64_t id = 0;  // 0 = none
    int32_t block = 0;
  };

  explicit PrefixIndex(int block_count);

  PrefixIndex(const PrefixIndex&) = delete;  // the set's hash points into this object
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  // The child of `parent` with these tokens; id 0 = none.
  Node Find(uint64_t parent, std::span<const int32_t> tokens) const;

  // Adds `block` as the child of `parent` with these tokens. If the child exists already, returns it and
  // leaves the index unchanged.
  Node Insert(uint64_t parent, std::span<const int32_t> tokens, int32_t block);

  // Removes an evicted block. Its children stay, unreachable, until they are evicted too.
  void Erase(int32_t block);

  size_t size() const { return blocks_.size(); }
  bool contains(int32_t block) const { return blocks_.contains(block); }

 private:
  struct Entry {
    uint64_t id = 0;
    uint64_t parent = 0;
    std::vector<int32_t> tokens;
  };
  struct Key {
    uint64_t parent;
    std::span<const int32_t> tokens;
  };
  struct Hash {
    using is_transparent = void;
    const std::vector<Entry>* entries;
    size_t operator()(const Key& key) const;
    size_t operator()(int32_t block) const;
  };
  struct Equal {
    using is_transparent = void;
    const std::vector<Entry>* entries;
    bool operator()(int32_t a, int32_t b) const { return a == b; }
    bool operator()(const Key& key, int32_t block) const;
    bool operator()(int32_t block, const Key& key) const { return (*this)(key, block); }
  };

  std::vector<Entry> entries_;  // [block_count]: what each indexed block holds
  absl::flat_hash_set<int32_t, Hash, Equal> blocks_;
  uint64_t next_id_ = kRoot + 1;
};

}  // namespace foredraft
