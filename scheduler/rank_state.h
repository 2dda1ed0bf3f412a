#ifndef FOREDRAFT_SCHEDULER_RANK_STATE_H_
#define FOREDRAFT_SCHEDULER_RANK_STATE_H_

// The scheduler's accounting of one rank: slots, blocks, block tables, reservations, prefix index. It makes
// no decisions. Owner: Scheduler. Thread: scheduler.
//
// Invariant reservation: every admitted sequence has its largest extent reserved, in the pool or, if it may
// be swapped, in the host store; and pool_reserved + prefilling_held <= capacity. So a sequence reserved in
// the pool always gets its blocks once the swappable decoding sequences are swapped out, a prompt always
// reaches its end (it holds all its blocks from admission on), and every image has room: no deadlock.
//
// Invariant table-mirror: between plans the device's table of a slot is its sequence's `blocks` followed by
// zeros, except from first_dirty on. The next plan carries the difference as deltas, which the rank applies
// before prefill and decode. So an entry that a rewind, a release or a swap gave up is cleared before the
// block's next owner writes to it.

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "scheduler/kv_block_pool.h"
#include "scheduler/plan.h"
#include "scheduler/prefix_index.h"
#include "scheduler/sequence.h"

namespace foredraft {

// Leading full blocks of a prompt that the prefix index has.
struct PrefixMatch {
  std::vector<int32_t> blocks;
  uint64_t last_node = PrefixIndex::kRoot;
};

class RankState {
 public:
  RankState(int block_count, int tokens_per_block, int max_batch_size);

  // ---- blocks ----
  int BlocksFor(int positions) const { return (positions + tokens_per_block_ - 1) / tokens_per_block_; }
  // The number of blocks that `sequence` still needs to own positions 0..positions-1.
  int Lacks(const Sequence& sequence, int positions) const;
  // Allocates them. False = the pool has too few, and nothing changes.
  bool Grow(Sequence* sequence, int positions);
  // Releases the blocks wholly at or past `positions`; returns their number.
  int Shrink(Sequence* sequence, int positions);

  // ---- slots ----
  bool has_free_slot() const { return !free_slots_.empty(); }
  int slots_used() const { return static_cast<int>(slots_.size() - free_slots_.size()); }
  const std::vector<Sequence*>& slots() const { return slots_; }
  void TakeSlot(Sequence* sequence);
  // Releases the sequence's slot and blocks.
  void Vacate(Sequence* sequence);

  // ---- prefix reuse ----
  PrefixMatch Match(std::span<const int32_t> prompt, int max_reused_len) const;
  // Blocks of the match that no sequence holds: reusing them reduces what Allocate can hand out.
  int UnheldIn(const PrefixMatch& match) const;
  void Reuse(Sequence* sequence, const PrefixMatch& match);
  // Indexes the blocks of the prompt that lie wholly in positions 0..end-1.
  void Offer(Sequence* sequence, int end);

  // ---- block tables ----
  // Appends the deltas that bring the device's tables up to date, and marks all tables clean.
  void TakeTableDeltas(std::vector<BlockTableDelta>* deltas);

  const KvBlockPool& pool() const { return pool_; }
  void CheckInvariants() const;

  // ---- written by Scheduler ----
  std::set<Sequence*, ComesFirst> prefilling;
  std::set<Sequence*, ComesFirst> swapped;
  int pool_reserved = 0;          // blocks: extents of admitted sequences that are not swappable
  int prefilling_held = 0;        // blocks: held by swappable sequences while they prefill
  int64_t host_reserved = 0;      // blocks: extents of admitted swappable sequences, and their slot state
  std::vector<int32_t> releases;  // for the next plan
  std::vector<uint64_t> dropped_images;

 private:
  struct SlotTable {
    int device_count = 0;  // entries that are not 0 on the device
    int first_dirty = kClean;
  };
  static constexpr int kClean = 1 << 30;

  void MarkDirty(int slot, int first_index);

  const int tokens_per_block_;
  KvBlockPool pool_;
  PrefixIndex index_;
  std::vector<Sequence*> slots_;   // [max_batch_size], null = free
  std::vector<int> free_slots_;    // a stack
  std::vector<SlotTable> tables_;  // [max_batch_size]
  std::vector<int> dirty_slots_;
  std::vector<int32_t> evicted_;  // scratch of Grow
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_RANK_STATE_H_
