#include "scheduler/rank_state.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {
namespace {

std::vector<int> BlockCounts(const std::vector<CacheGroupShape>& shapes) {
  std::vector<int> counts;
  for (const CacheGroupShape& shape : shapes) counts.push_back(shape.block_count);
  return counts;
}

}  // namespace

RankState::RankState(const std::vector<CacheGroupShape>& shapes, int max_batch_size)
    : pool_reserved(shapes.size()),
      prefilling_held(shapes.size()),
      index_(shapes.front().block_count),
      ends_(BlockCounts(shapes)),
      slots_(max_batch_size) {
  groups_.reserve(shapes.size());
  for (const CacheGroupShape& shape : shapes) groups_.emplace_back(shape, max_batch_size);
  for (int slot = max_batch_size - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

void RankState::SetBounds(Sequence* sequence) const {
  sequence->owned_len = kClean;
  sequence->shrinkable_len = -1;
  for (int group = 0; group < group_count(); ++group) {
    const SequenceBlocks& blocks = sequence->groups[group];
    const int size = groups_[group].shape.tokens_per_block;
    sequence->owned_len = std::min(sequence->owned_len, blocks.end_index() * size);
    if (blocks.ids.empty()) continue;
    sequence->shrinkable_len = std::max(sequence->shrinkable_len, (blocks.end_index() - 1) * size);
  }
}

// Appends `count` blocks, which the pool must have.
void RankState::Allocate(int group, int count, std::vector<int32_t>* blocks) {
  evicted_.clear();
  CHECK(groups_[group].pool.Allocate(count, blocks, &evicted_)) << "group " << group;
  for (const int32_t block : evicted_) Evict(group, block);
}

bool RankState::GrowTables(Sequence* sequence, int positions) {
  for (int group = 0; group < group_count(); ++group) {
    if (Lacks(*sequence, group, positions) > pool(group).available()) return false;
  }
  for (int group = 0; group < group_count(); ++group) {
    const int count = Lacks(*sequence, group, positions);
    if (count == 0) continue;
    SequenceBlocks& blocks = sequence->groups[group];
    const int first_new = blocks.end_index();
    Allocate(group, count, &blocks.ids);
    MarkDirty(group, sequence->slot, first_new);
  }
  SetBounds(sequence);
  return true;
}

int RankState::ShrinkTables(Sequence* sequence, int positions) {
  int count = 0;
  for (int group = 0; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    const int kept = std::max(groups_[group].shape.BlocksFor(positions), blocks.first_index);
    if (blocks.end_index() <= kept) continue;
    // Last block first, so that the tail of a cached prefix is evicted before the blocks that lead to it.
    while (blocks.end_index() > kept) {
      if (blocks.ids.back() != kScratchBlock) {
        Release(group, blocks.ids.back());
        ++count;
      }
      blocks.ids.pop_back();
    }
    MarkDirty(group, sequence->slot, kept);
  }
  SetBounds(sequence);
  return count;
}

void RankState::Pass(Sequence* sequence, int length) {
  if (!sequence->ends.empty()) return;  // its last chunk is not committed
  for (int group = kHistoryGroup + 1; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    const int passed = groups_[group].shape.FirstIndex(length) - blocks.first_index;
    if (passed <= 0) continue;
    CHECK_LE(passed, static_cast<int>(blocks.ids.size()));
    for (int i = passed - 1; i >= 0; --i) {
      if (blocks.ids[i] != kScratchBlock) Release(group, blocks.ids[i]);
    }
    blocks.ids.erase(blocks.ids.begin(), blocks.ids.begin() + passed);
    blocks.first_index += passed;
    MarkDirty(group, sequence->slot, kClean);
  }
}

void RankState::TakeImage(Sequence* sequence) {
  for (int group = 0; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    Allocate(group, blocks.image_count, &blocks.ids);
    MarkDirty(group, sequence->slot, blocks.first_index);
  }
  SetBounds(sequence);
}

void RankState::Hold(Sequence* sequence, const CacheGroupCounts& fresh) {
  for (int group = 0; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    if (group != kHistoryGroup) {
      Allocate(group, fresh[group], &blocks.spare);
    } else if (fresh[group] > 0) {
      const int first_new = blocks.end_index();
      Allocate(group, fresh[group], &blocks.ids);
      MarkDirty(group, sequence->slot, first_new);
    }
  }
  SetBounds(sequence);
  for (int group = 0; sequence->swappable && group < group_count(); ++group) {
    prefilling_held[group] += sequence->groups[group].held();
  }
}

void RankState::MapChunk(Sequence* sequence, int first, int end, int own_end, bool last) {
  for (int group = kHistoryGroup + 1; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    const int held_before = blocks.held();
    const int first_changed = MapWindow(sequence, group, first, end, own_end);
    MarkDirty(group, sequence->slot, first_changed);
    if (last) {
      for (const int32_t block : blocks.spare) Release(group, block);
      blocks.spare.clear();
    }
    if (sequence->swappable) prefilling_held[group] += blocks.held() - held_before;
  }
  SetBounds(sequence);
}

// Returns the first entry that may have changed.
int RankState::MapWindow(Sequence* sequence, int group, int first, int end, int own_end) {
  const CacheGroupShape& shape = groups_[group].shape;
  SequenceBlocks& blocks = sequence->groups[group];
  const int size = shape.tokens_per_block;
  // Whether a block has positions of [low, high).
  const auto meets = [size](int index, int low, int high) {
    return index * size < high && (index + 1) * size > low;
  };
  const auto in_end = [&](int index) {
    return std::any_of(sequence->ends.begin(), sequence->ends.end(), [&](int32_t prefix_len) {
      return meets(index, prefix_len - shape.lookback, prefix_len) && index * size < end;
    });
  };
  int first_changed = kClean;
  for (int index = blocks.first_index; index < blocks.end_index(); ++index) {
    int32_t& block = blocks.ids[index - blocks.first_index];
    if (block == kScratchBlock || meets(index, first - shape.lookback, first)) continue;
    if (meets(index, end - shape.lookback, own_end) || in_end(index)) continue;
    if (groups_[group].pool.indexed(block) || groups_[group].pool.ref_count(block) > 1) {
      Release(group, block);
    } else {
      blocks.spare.push_back(block);
    }
    block = kScratchBlock;
    first_changed = std::min(first_changed, index);
  }
  if (blocks.ids.empty()) blocks.first_index = first / size;
  blocks.ids.resize(std::max(0, shape.BlocksFor(own_end) - blocks.first_index), kScratchBlock);
  for (int index = std::max(blocks.first_index, first / size); index < blocks.end_index(); ++index) {
    int32_t& block = blocks.ids[index - blocks.first_index];
    if (block != kScratchBlock) continue;
    if (!meets(index, end - shape.lookback, own_end) && !in_end(index)) continue;
    CHECK(!blocks.spare.empty()) << "reservation: group " << group << ", chunk " << first << ".." << end;
    block = blocks.spare.back();
    blocks.spare.pop_back();
    first_changed = std::min(first_changed, index);
  }
  const auto mapped = std::find_if(blocks.ids.begin(), blocks.ids.end(), [](int32_t id) { return id != 0; });
  blocks.first_index += static_cast<int>(mapped - blocks.ids.begin());
  blocks.ids.erase(blocks.ids.begin(), mapped);
  return first_changed;
}

void RankState::EndPrompt(Sequence* sequence) {
  CHECK(sequence->ends.empty()) << "offer: " << sequence->ends.front();
  for (int group = 0; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    if (!sequence->swappable) pool_reserved[group] -= blocks.limit - blocks.extent;
    blocks.limit = blocks.extent;
  }
}

void RankState::TakeSlot(Sequence* sequence) {
  sequence->slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[sequence->slot] = sequence;
}

void RankState::Vacate(Sequence* sequence) {
  Shrink(sequence, 0);
  for (int group = kHistoryGroup + 1; group < group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    for (const int32_t block : blocks.spare) Release(group, block);
    blocks.spare.clear();
    blocks.first_index = 0;
    MarkDirty(group, sequence->slot, groups_[group].tables[sequence->slot].device_first);
  }
  SetBounds(sequence);
  slots_[sequence->slot] = nullptr;
  free_slots_.push_back(sequence->slot);
  sequence->slot = -1;
}

void RankState::MarkDirty(int group, int slot, int first_index) {
  SlotTable& table = groups_[group].tables[slot];
  if (!table.dirty) groups_[group].dirty_slots.push_back(slot);
  table.dirty = true;
  table.first_dirty = std::min(table.first_dirty, first_index);
}

void RankState::TakeTableDeltas(std::vector<BlockTableDelta>* deltas) {
  for (int group = 0; group < group_count(); ++group) {
    std::vector<int>& dirty_slots = groups_[group].dirty_slots;
    std::sort(dirty_slots.begin(), dirty_slots.end());
    for (const int slot : dirty_slots) TakeDeltas(group, slot, deltas);
    dirty_slots.clear();
  }
}

void RankState::TakeDeltas(int group, int slot, std::vector<BlockTableDelta>* deltas) {
  SlotTable& table = groups_[group].tables[slot];
  const SequenceBlocks* const blocks = slots_[slot] == nullptr ? nullptr : &slots_[slot]->groups[group];
  const int wanted_end = blocks == nullptr ? 0 : blocks->end_index();
  const int wanted_first = blocks == nullptr ? 0 : blocks->first_index;
  const auto delta_of = [&](int first, int end) -> std::vector<int32_t>& {
    deltas->push_back({.slot = slot, .group = group, .first_index = first, .block_ids = {}});
    deltas->back().block_ids.assign(end - first, kScratchBlock);
    return deltas->back().block_ids;
  };
  const int passed_end = std::min({wanted_first, table.device_end, table.first_dirty});
  if (table.device_first < passed_end) delta_of(table.device_first, passed_end);
  const int end = std::max(wanted_end, table.device_end);
  if (table.first_dirty < end) {
    std::vector<int32_t>& entries = delta_of(table.first_dirty, end);
    const int first = std::max(table.first_dirty, wanted_first);
    if (wanted_end > first) {
      std::copy(blocks->ids.begin() + (first - wanted_first), blocks->ids.end(),
                entries.begin() + (first - table.first_dirty));
    }
  }
  table = {.device_first = wanted_first, .device_end = wanted_end};
}

void RankState::CheckInvariants() const {
  for (int group = 0; group < group_count(); ++group) CheckGroup(group);
  for (const Sequence* sequence : slots_) {
    if (sequence != nullptr) CheckBounds(*sequence);
  }
  size_t indexed = 0;
  size_t ends = 0;
  for (int block = 1; block <= pool().capacity(); ++block) {
    CHECK_EQ(pool().indexed(block), index_.contains(block)) << "block " << block;
    indexed += pool().indexed(block);
    if (!ends_.contains(block)) continue;
    CHECK(index_.contains(block)) << "prefix end of block " << block;
    ++ends;
  }
  CHECK_EQ(indexed, index_.size());
  CHECK_EQ(ends, ends_.size());
}

void RankState::CheckBounds(const Sequence& sequence) const {
  Sequence fresh;
  fresh.groups = sequence.groups;
  SetBounds(&fresh);
  CHECK_EQ(sequence.owned_len, fresh.owned_len) << "request " << sequence.request.id;
  CHECK_EQ(sequence.shrinkable_len, fresh.shrinkable_len) << "request " << sequence.request.id;
}

void RankState::CheckGroup(int group) const {
  const KvBlockPool& pool = groups_[group].pool;
  pool.CheckInvariants();
  std::vector<int> references(pool.capacity() + 1);
  int prefilling_blocks = 0;
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    const Sequence* sequence = slots_[slot];
    if (sequence == nullptr) continue;
    CHECK_EQ(sequence->slot, static_cast<int>(slot));
    const SequenceBlocks& blocks = sequence->groups[group];
    CHECK_LE(blocks.held(), blocks.limit)
        << "group " << group << ", request " << sequence->request.id << " at " << sequence->length
        << ", prompt of " << sequence->prompt_len << ", first block " << blocks.first_index;
    for (const int32_t block : blocks.ids) ++references[block];
    for (const int32_t block : blocks.spare) ++references[block];
    const bool prompt_is_committed = sequence->length > sequence->prompt_len;
    CHECK(!prompt_is_committed || blocks.limit == blocks.extent) << "group " << group;
    if (group == kHistoryGroup) {
      CHECK_EQ(blocks.first_index, 0);
      CHECK_EQ(references[kScratchBlock], 0);
    }
    if (sequence->state == SequenceState::kPrefilling) {
      prefilling_blocks += sequence->swappable ? blocks.held() : 0;
    } else {
      CHECK(blocks.spare.empty()) << "group " << group;
    }
  }
  for (int block = 1; block <= pool.capacity(); ++block) {
    CHECK_EQ(references[block], pool.ref_count(block))
        << "block-conservation: references of " << block << ", group " << group;
    if (group != kHistoryGroup) {
      CHECK_EQ(pool.indexed(block), ends_.is_read(group, block)) << "block " << block << ", group " << group;
    }
  }
  CHECK_EQ(prefilling_blocks, prefilling_held[group]) << "group " << group;
  CHECK_LE(promised(group), pool.capacity()) << "reservation, group " << group;
}

}  // namespace foredraft
