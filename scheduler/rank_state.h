#pragma once

// The scheduler's accounting of one rank: slots, and for every cache group blocks, block tables, reservations
// and what the prefix index has. It makes no decisions. Owner: Scheduler. Thread: scheduler.
//
// Invariant reservation, in each group: every admitted sequence has its largest extent reserved, in the pool
// or, if it may be swapped, in the host store; and pool_reserved + prefilling_held <= capacity. So a sequence
// reserved in the pool always gets its blocks once the swappable decoding sequences are swapped out, a prompt
// always reaches its end (from admission on it holds all the blocks that its chunks will need), and every
// image has room: no deadlock.
//
// Invariant table-mirror: between plans the device's table of a slot and group has its sequence's `ids` from
// first_index on and zeros elsewhere, except for the dirty entries of SlotTable. The next plan carries the
// difference as deltas, which the rank applies before prefill and decode. So an entry that a rewind, a
// release or a swap gave up is cleared before the block's next owner writes to it.
//
// Invariant one-writer: a block that two sequences have, or that the prefix index has, is never written. For
// the history it holds because prefixes are whole blocks. For a window it holds because the history's blocks
// are multiples of the window's, so that no window block crosses a prefix end.

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "scheduler/cache_group_shape.h"
#include "scheduler/kv_block_pool.h"
#include "scheduler/plan.h"
#include "scheduler/prefix_ends.h"
#include "scheduler/prefix_index.h"
#include "scheduler/sequence.h"

namespace foredraft {

// Leading full history blocks of a prompt that can be reused.
struct PrefixMatch {
  std::vector<int32_t> blocks;
  uint64_t last_node = PrefixIndex::kRoot;
  int cached_count = 0;  // leading blocks that the index has: more than `blocks` where windows are missing
};

// A number of blocks of each group.
using CacheGroupCounts = absl::InlinedVector<int, 4>;

class RankState {
 public:
  RankState(const std::vector<CacheGroupShape>& shapes, int max_batch_size);

  int group_count() const { return static_cast<int>(groups_.size()); }
  const CacheGroupShape& shape(int group) const { return groups_[group].shape; }
  const KvBlockPool& pool(int group = kHistoryGroup) const { return groups_[group].pool; }
  // The blocks of `group` that are promised to sequences that cannot be swapped out now.
  int promised(int group) const { return pool_reserved[group] + prefilling_held[group]; }

  // ---- blocks ----
  // The number of blocks of `group` that `sequence` still needs to own its positions up to positions - 1.
  int Lacks(const Sequence& sequence, int group, int positions) const {
    return std::max(0, groups_[group].shape.BlocksFor(positions) - sequence.groups[group].end_index());
  }
  bool Lacks(const Sequence& sequence, int positions) const { return positions > sequence.owned_len; }
  // Allocates the blocks that the sequence lacks, in every group. False = a pool has too few, and nothing
  // changes.
  bool Grow(Sequence* sequence, int positions) {
    return !Lacks(*sequence, positions) || GrowTables(sequence, positions);
  }
  // Releases the blocks wholly at or past `positions`; returns their number.
  int Shrink(Sequence* sequence, int positions) {
    return positions > sequence->shrinkable_len ? 0 : ShrinkTables(sequence, positions);
  }
  // Releases the window blocks wholly below what a step at `length` reads. Does nothing while the sequence
  // has prefix ends to offer.
  void Pass(Sequence* sequence, int length);

  // Allocates the blocks of a swapped sequence's image, which the pools must have.
  void TakeImage(Sequence* sequence);

  // ---- prompts ----
  // Allocates the blocks of an admission: the history's for the whole prompt, and as `spare` the window
  // blocks that its chunks will need. The pools must have them.
  void Hold(Sequence* sequence, const CacheGroupCounts& fresh);
  // Maps window blocks for the prompt chunk [first, end): those of the positions up to own_end - 1 that the
  // chunk or later rows read, and those of prefix ends. The other positions get no memory. `last`: the prompt
  // ends, and the remaining `spare` blocks are released.
  void MapChunk(Sequence* sequence, int first, int end, int own_end, bool last);
  // The prompt's last chunk is committed: the sequence owns at most its decode extent from now on.
  void EndPrompt(Sequence* sequence);

  // ---- slots ----
  bool has_free_slot() const { return !free_slots_.empty(); }
  int slots_used() const { return static_cast<int>(slots_.size() - free_slots_.size()); }
  const std::vector<Sequence*>& slots() const { return slots_; }
  void TakeSlot(Sequence* sequence);
  // Releases the sequence's slot and blocks.
  void Vacate(Sequence* sequence);

  // ---- prefix reuse (rank_prefix.cc) ----
  PrefixMatch Match(uint64_t scope, std::span<const int32_t> prompt, int max_reused_len) const;
  // Blocks of the match that no sequence holds: reusing them reduces what Allocate can hand out.
  int UnheldIn(const PrefixMatch& match, int group) const;
  void Reuse(Sequence* sequence, const PrefixMatch& match);
  // Indexes the blocks that lie wholly in positions 0..end-1, and the windows of the prefix ends among them.
  void Offer(Sequence* sequence, int end);
  // With windows, moves the prefix end of the sequence's answer to the last offered block.
  void MoveAnswerEnd(Sequence* sequence);

  // ---- block tables ----
  // Appends the deltas that bring the device's tables up to date, and marks all tables clean.
  void TakeTableDeltas(std::vector<BlockTableDelta>* deltas);

  void CheckInvariants() const;

  // ---- written by Scheduler ----
  std::set<Sequence*, ComesFirst> prefilling;
  std::set<Sequence*, ComesFirst> swapped;
  CacheGroupCounts pool_reserved;    // blocks: `limit` of admitted sequences that are not swappable
  CacheGroupCounts prefilling_held;  // blocks: held by swappable sequences while they prefill
  int64_t host_reserved = 0;         // frames: extents of admitted swappable sequences, and their slot state
  std::vector<int32_t> releases;     // for the next plan
  std::vector<uint64_t> dropped_images;

 private:
  static constexpr int kClean = 1 << 30;
  // What the device has to learn of a table.
  struct SlotTable {
    int device_first = 0;  // on the device entries below this one, and from device_end on, are 0
    int device_end = 0;
    int first_dirty = kClean;  // entries from here on may differ, and those below the sequence's first_index
    bool dirty = false;
  };
  struct Group {
    Group(const CacheGroupShape& shape, int max_batch_size)
        : shape(shape), pool(shape.block_count), tables(max_batch_size) {}
    CacheGroupShape shape;
    KvBlockPool pool;
    std::vector<SlotTable> tables;  // [max_batch_size]
    std::vector<int> dirty_slots;
  };

  bool GrowTables(Sequence* sequence, int positions);
  int ShrinkTables(Sequence* sequence, int positions);
  void SetBounds(Sequence* sequence) const;
  void Allocate(int group, int count, std::vector<int32_t>* blocks);
  void Release(int group, int32_t block) { groups_[group].pool.Release(block); }
  void MarkDirty(int group, int slot, int first_index);
  void TakeDeltas(int group, int slot, std::vector<BlockTableDelta>* deltas);
  int MapWindow(Sequence* sequence, int group, int first, int end, int own_end);
  void Evict(int group, int32_t block);
  void Unindex(const std::vector<PrefixEnds::WindowBlock>& blocks);
  void KeepEnd(const Sequence& sequence, int32_t history_block, int prefix_len);
  void CheckGroup(int group) const;
  void CheckBounds(const Sequence& sequence) const;

  std::vector<Group> groups_;
  PrefixIndex index_;
  PrefixEnds ends_;
  std::vector<Sequence*> slots_;  // [max_batch_size], null = free
  std::vector<int> free_slots_;   // a stack
  std::vector<int32_t> evicted_;  // scratch of Allocate
};

}  // namespace foredraft
