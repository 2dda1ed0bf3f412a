#pragma once

// Prefix ends: the places in the prefix index at which a prefix can be reused although the model has windows
// (scheduler/cache_group_shape.h). An end belongs to the last history block of its prefix of n tokens, and
// has, for every window, the blocks of positions n - lookback .. n - 1. Two ends that are near each other may
// share blocks. No reference counts: those are KvBlockPool's. Owner: RankState, one per rank. Thread:
// scheduler.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace foredraft {

class PrefixEnds {
 public:
  struct WindowBlock {
    int group = 0;  // 1 or more
    int32_t block = 0;
  };

  // block_counts: of each group, the history (which is not looked at) first.
  explicit PrefixEnds(const std::vector<int>& block_counts);

  bool contains(int32_t history_block) const { return ends_.contains(history_block); }
  size_t size() const { return ends_.size(); }

  // The blocks of an end in a group, in position order.
  const std::vector<int32_t>& blocks(int32_t history_block, int group) const;

  // blocks: [groups - 1]. The end must not exist.
  void Add(int32_t history_block, std::vector<std::vector<int32_t>> blocks);

  // Removes an end, if it exists. Appends the blocks that no other end reads.
  void Erase(int32_t history_block, std::vector<WindowBlock>* unread);

  // Removes all ends that read this block, and appends as Erase does.
  void EraseReaders(int group, int32_t block, std::vector<WindowBlock>* unread);

  bool is_read(int group, int32_t block) const { return !readers_[group][block].empty(); }

 private:
  absl::flat_hash_map<int32_t, std::vector<std::vector<int32_t>>> ends_;  // by history block
  std::vector<std::vector<std::vector<int32_t>>> readers_;  // [groups][block]: the ends' history blocks
};

}  // namespace foredraft
