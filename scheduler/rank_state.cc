#include "scheduler/rank_state.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {

RankState::RankState(int block_count, int tokens_per_block, int max_batch_size)
    : tokens_per_block_(tokens_per_block),
      pool_(block_count),
      index_(block_count),
      slots_(max_batch_size),
      tables_(max_batch_size) {
  for (int slot = max_batch_size - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

int RankState::Lacks(const Sequence& sequence, int positions) const {
  return std::max(0, BlocksFor(positions) - static_cast<int>(sequence.blocks.size()));
}

bool RankState::Grow(Sequence* sequence, int positions) {
  const int count = Lacks(*sequence, positions);
  if (count == 0) return true;
  const int first_new = static_cast<int>(sequence->blocks.size());
  evicted_.clear();
  if (!pool_.Allocate(count, &sequence->blocks, &evicted_)) return false;
  for (int32_t block : evicted_) index_.Erase(block);
  MarkDirty(sequence->slot, first_new);
  return true;
}

int RankState::Shrink(Sequence* sequence, int positions) {
  const int kept = BlocksFor(positions);
  int count = 0;
  while (static_cast<int>(sequence->blocks.size()) > kept) {
    pool_.Release(sequence->blocks.back());
    sequence->blocks.pop_back();
    ++count;
  }
  if (count > 0) MarkDirty(sequence->slot, kept);
  return count;
}

void RankState::TakeSlot(Sequence* sequence) {
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[sequence->slot] = sequence;
}

void RankState::Vacate(Sequence* sequence) {
  // Last block first, so that the tail of a cached prefix is evicted before the blocks that lead to it.
  Shrink(sequence, 0);
  slots_[sequence->slot] = nullptr;
  free_slots_.push_back(sequence->slot);
  sequence->slot = -1;
}

PrefixMatch RankState::Match(std::span<const int32_t> prompt, int max_reused_len) const {
  PrefixMatch match;
  const int block_limit = max_reused_len / tokens_per_block_;
  for (int i = 0; i < block_limit; ++i) {
    PrefixIndex::Node node =
        index_.Find(match.last_node, prompt.subspan(i * tokens_per_block_, tokens_per_block_));
    if (node.id == 0) break;
    match.blocks.push_back(node.block);
    match.last_node = node.id;
  }
  return match;
}

int RankState::UnheldIn(const PrefixMatch& match) const {
  return static_cast<int>(std::count_if(match.blocks.begin(), match.blocks.end(),
                                        [this](int32_t block) { return pool_.ref_count(block) == 0; }));
}

void RankState::Reuse(Sequence* sequence, const PrefixMatch& match) {
  CHECK(sequence->blocks.empty());
  for (int32_t block : match.blocks) pool_.Share(block);
  sequence->blocks = match.blocks;
  sequence->offered_block_count = static_cast<int>(match.blocks.size());
  sequence->offered_node = match.last_node;
  if (!match.blocks.empty()) MarkDirty(sequence->slot, 0);
}

void RankState::Offer(Sequence* sequence, int end) {
  const std::span<const int32_t> prompt = sequence->request.prompt_ids;
  const int full_blocks = end / tokens_per_block_;
  for (int i = sequence->offered_block_count; i < full_blocks; ++i) {
    const int32_t block = sequence->blocks[i];
    PrefixIndex::Node node = index_.Insert(sequence->offered_node,
                                           prompt.subspan(i * tokens_per_block_, tokens_per_block_), block);
    // Otherwise an equal block is indexed already, and this one is not shared.
    if (node.block == block) pool_.MarkIndexed(block);
    sequence->offered_node = node.id;
    sequence->offered_block_count = i + 1;
  }
}

void RankState::MarkDirty(int slot, int first_index) {
  SlotTable& table = tables_[slot];
  if (table.first_dirty == kClean) dirty_slots_.push_back(slot);
  table.first_dirty = std::min(table.first_dirty, first_index);
}

void RankState::TakeTableDeltas(std::vector<BlockTableDelta>* deltas) {
  std::sort(dirty_slots_.begin(), dirty_slots_.end());
  for (int slot : dirty_slots_) {
    SlotTable& table = tables_[slot];
    const int wanted = slots_[slot] == nullptr ? 0 : static_cast<int>(slots_[slot]->blocks.size());
    const int end = std::max(wanted, table.device_count);
    if (table.first_dirty < end) {
      BlockTableDelta delta{.slot = slot, .first_index = table.first_dirty, .block_ids = {}};
      delta.block_ids.assign(end - table.first_dirty, kScratchBlock);
      if (wanted > table.first_dirty) {
        const std::vector<int32_t>& blocks = slots_[slot]->blocks;
        std::copy(blocks.begin() + table.first_dirty, blocks.end(), delta.block_ids.begin());
      }
      deltas->push_back(std::move(delta));
    }
    table = {.device_count = wanted, .first_dirty = kClean};
  }
  dirty_slots_.clear();
}

void RankState::CheckInvariants() const {
  pool_.CheckInvariants();
  std::vector<int> references(pool_.capacity() + 1);
  int prefilling_blocks = 0;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const Sequence* sequence = slots_[slot];
    if (sequence == nullptr) continue;
    CHECK_EQ(sequence->slot, static_cast<int>(slot));
    CHECK_LE(static_cast<int>(sequence->blocks.size()), sequence->extent_blocks);
    for (int32_t block : sequence->blocks) ++references[block];
    if (sequence->swappable && sequence->state == SequenceState::kPrefilling) {
      prefilling_blocks += static_cast<int>(sequence->blocks.size());
    }
  }
  CHECK_EQ(references[kScratchBlock], 0);
  size_t indexed = 0;
  for (int block = 1; block <= pool_.capacity(); ++block) {
    CHECK_EQ(references[block], pool_.ref_count(block)) << "block-conservation: references of " << block;
    CHECK_EQ(pool_.indexed(block), index_.contains(block)) << "block " << block;
    indexed += pool_.indexed(block);
  }
  CHECK_EQ(indexed, index_.size());
  CHECK_EQ(prefilling_blocks, prefilling_held);
  CHECK_LE(pool_reserved + prefilling_held, pool_.capacity()) << "reservation";
}

}  // namespace foredraft
