// RankState's part in prefix reuse: what the prefix index and the prefix ends have of the pools' blocks.
//
// A prefix of a model with windows can be reused where it ends at a prefix end (prefix_ends.h). When a block
// of an end is evicted, the end is gone, and its other blocks are free at once unless another end reads them.
// So no pool caches a window block that no cached prefix can use, and free blocks are handed out first.

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "scheduler/rank_state.h"

namespace foredraft {

PrefixMatch RankState::Match(uint64_t scope, std::span<const int32_t> prompt, int max_reused_len) const {
  PrefixMatch match;
  match.last_node = PrefixIndex::RootOf(scope);
  const int size = groups_[kHistoryGroup].shape.tokens_per_block;
  const bool has_windows = group_count() > 1;
  const int block_limit = max_reused_len / size;
  size_t usable = 0;
  uint64_t usable_node = match.last_node;
  for (int i = 0; i < block_limit; ++i) {
    PrefixIndex::Node node = index_.Find(match.last_node, prompt.subspan(i * size, size));
    if (node.id == 0) break;
    match.blocks.push_back(node.block);
    match.last_node = node.id;
    if (has_windows && ends_.contains(node.block)) {
      usable = match.blocks.size();
      usable_node = node.id;
    }
  }
  match.cached_count = static_cast<int>(match.blocks.size());
  if (has_windows) {
    match.blocks.resize(usable);
    match.last_node = usable_node;
  }
  return match;
}

int RankState::UnheldIn(const PrefixMatch& match, int group) const {
  if (match.blocks.empty()) return 0;
  const std::vector<int32_t>& blocks =
      group == kHistoryGroup ? match.blocks : ends_.blocks(match.blocks.back(), group);
  const KvBlockPool& pool = groups_[group].pool;
  return static_cast<int>(std::count_if(blocks.begin(), blocks.end(),
                                        [&pool](int32_t block) { return pool.ref_count(block) == 0; }));
}

void RankState::Reuse(Sequence* sequence, const PrefixMatch& match) {
  sequence->offered_block_count = static_cast<int>(match.blocks.size());
  sequence->offered_node = match.last_node;
  const int prefix_len = sequence->offered_block_count * groups_[kHistoryGroup].shape.tokens_per_block;
  for (int group = 0; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    CHECK(blocks.ids.empty() && blocks.first_index == 0);
    if (match.blocks.empty()) continue;
    blocks.ids = group == kHistoryGroup ? match.blocks : ends_.blocks(match.blocks.back(), group);
    blocks.first_index = groups_[group].shape.FirstIndex(prefix_len);
    for (const int32_t block : blocks.ids) groups_[group].pool.Share(block);
    MarkDirty(group, sequence->slot, blocks.first_index);
  }
}

void RankState::Offer(Sequence* sequence, int end) {
  Group& history = groups_[kHistoryGroup];
  const int size = history.shape.tokens_per_block;
  const int full_blocks = end / size;
  std::vector<int32_t>& ends = sequence->ends;
  for (int i = sequence->offered_block_count; i < full_blocks; ++i) {
    const int32_t block = sequence->groups[kHistoryGroup].ids[i];
    PrefixIndex::Node node = index_.Insert(sequence->offered_node, sequence->TokensAt(i * size, size), block);
    // Otherwise an equal block is indexed already, and this one is not shared.
    if (node.block == block) history.pool.MarkIndexed(block);
    sequence->offered_node = node.id;
    sequence->offered_block_count = i + 1;
    if (!ends.empty() && ends.front() == (i + 1) * size) {
      KeepEnd(*sequence, node.block, ends.front());
      ends.erase(ends.begin());
    }
  }
}

void RankState::MoveAnswerEnd(Sequence* sequence) {
  if (group_count() == 1) return;
  const int count = sequence->offered_block_count;
  const int32_t block = sequence->groups[kHistoryGroup].ids[count - 1];
  std::vector<PrefixEnds::WindowBlock> unread;
  if (sequence->answer_end != kScratchBlock) ends_.Erase(sequence->answer_end, &unread);
  // The index may have an equal block of another sequence, which keeps the end that this one would add.
  const bool own = groups_[kHistoryGroup].pool.indexed(block) && !ends_.contains(block);
  if (own) KeepEnd(*sequence, block, count * groups_[kHistoryGroup].shape.tokens_per_block);
  sequence->answer_end = own ? block : kScratchBlock;
  Unindex(unread);
}

// Records the window blocks that the sequence has at `prefix_len` as those of a prefix end.
void RankState::KeepEnd(const Sequence& sequence, int32_t history_block, int prefix_len) {
  if (ends_.contains(history_block)) return;
  std::vector<std::vector<int32_t>> window_blocks;
  for (int group = kHistoryGroup + 1; group < group_count(); ++group) {
    const SequenceBlocks& blocks = sequence.groups[group];
    const int first = groups_[group].shape.FirstIndex(prefix_len);
    const int end = groups_[group].shape.BlocksFor(prefix_len);
    CHECK_GE(first, blocks.first_index) << "group " << group;
    CHECK_LE(end, blocks.end_index()) << "group " << group;
    const auto begin = blocks.ids.begin() - blocks.first_index;
    std::vector<int32_t>& of_group = window_blocks.emplace_back(begin + first, begin + end);
    for (const int32_t block : of_group) {
      CHECK_NE(block, kScratchBlock) << "group " << group;
      if (!groups_[group].pool.indexed(block)) groups_[group].pool.MarkIndexed(block);
    }
  }
  ends_.Add(history_block, std::move(window_blocks));
}

// Forgets a cached block that the pool hands out.
void RankState::Evict(int group, int32_t block) {
  if (group == kHistoryGroup) index_.Erase(block);
  if (group_count() == 1) return;
  std::vector<PrefixEnds::WindowBlock> unread;
  if (group == kHistoryGroup) {
    ends_.Erase(block, &unread);
  } else {
    ends_.EraseReaders(group, block, &unread);
  }
  Unindex(unread);
}

void RankState::Unindex(const std::vector<PrefixEnds::WindowBlock>& blocks) {
  for (const auto& [group, block] : blocks) {
    KvBlockPool& pool = groups_[group].pool;
    // A block that was handed out is not indexed any more; a block that a new end reads stays.
    if (pool.indexed(block) && !ends_.is_read(group, block)) pool.Unindex(block);
  }
}

}  // namespace foredraft
