#pragma once

// Byte-pair encoding: a piece starts as one token per byte, and the adjacent pair of the lowest rank
// (leftmost first) is merged until no pair can be.

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace foredraft {

// Immutable once filled; thread-safe.
class Bpe {
 public:
  struct Merge {
    int32_t rank;
    int32_t id;  // of the merged token
  };

  explicit Bpe(const std::array<int32_t, 256>& byte_ids) : byte_ids_(byte_ids) {}

  // A pair given twice keeps its last rank.
  void AddMerge(int32_t left, int32_t right, Merge merge) {
    merges_.insert_or_assign(Key(left, right), merge);
  }
  // A piece equal to `bytes` becomes `id` without any merges.
  void AddWholePiece(std::string bytes, int32_t id) { whole_pieces_.insert_or_assign(std::move(bytes), id); }

  // Appends the ids of a piece, in O(n log n) of its length. Pieces of `long_piece` bytes and more are merged
  // in the same order by another structure, which is faster for them.
  void Encode(std::string_view piece, std::vector<int32_t>& ids, size_t long_piece = 4096) const;

 private:
  static uint64_t Key(int32_t left, int32_t right) {
    return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  }
  const Merge* FindMerge(int32_t left, int32_t right) const;
  template <class Candidates>
  void MergeAll(std::string_view piece, std::vector<int32_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  absl::flat_hash_map<uint64_t, Merge> merges_;             // by Key(left, right)
  absl::flat_hash_map<std::string, int32_t> whole_pieces_;  // empty unless the file says ignore_merges
};

}  // namespace foredraft
