#pragma once

// The block ids of one cache group of a rank: held, cached for reuse or free. No bytes: those are in KvCache.
// Owner: RankState, one per group. Thread: scheduler.
//
// A block is in one of three states:
//   free     no reference, not in the prefix index
//   held     one reference per sequence that has it in its block table
//   cached   no reference, but in the prefix index: kept for reuse, evicted least recently used first
//
// Invariant block-conservation: free + held + cached = capacity, and a block's reference count is the number
// of block tables of sequences that have it. Block 0 (scratch) is never handed out.

#include <cstdint>
#include <vector>

namespace foredraft {

class KvBlockPool {
 public:
  // `block_count` includes the scratch block.
  explicit KvBlockPool(int block_count);

  // Appends `count` blocks with one reference each: free ones first, then cached ones, whose ids are appended
  // to `evicted` too (the prefix index must erase them). All or nothing; false = the pool is unchanged.
  bool Allocate(int count, std::vector<int32_t>* blocks, std::vector<int32_t>* evicted);

  // Adds a reference to a held or cached block.
  void Share(int32_t block);

  // Drops one reference. Without references the block is cached if it is indexed, else free.
  void Release(int32_t block);

  // Records that the prefix index has this held block.
  void MarkIndexed(int32_t block);

  // Records that the prefix index no longer has the block: without references it is free.
  void Unindex(int32_t block);

  int capacity() const { return static_cast<int>(blocks_.size()) - 1; }
  int free_count() const { return static_cast<int>(free_.size()); }
  int cached_count() const { return cached_count_; }
  int held_count() const { return held_count_; }
  int available() const { return free_count() + cached_count(); }  // what Allocate can hand out
  int ref_count(int32_t block) const { return blocks_[block].ref_count; }
  bool indexed(int32_t block) const { return blocks_[block].indexed; }

  // CHECKs block-conservation against a count of every block.
  void CheckInvariants() const;

 private:
  struct Block {
    int32_t ref_count = 0;
    bool indexed = false;
    int32_t older = 0;  // neighbours in the list of cached blocks; 0 = the list's head
    int32_t newer = 0;
  };

  void AppendToCached(int32_t block);
  void RemoveFromCached(int32_t block);

  std::vector<Block> blocks_;  // [block_count]; entry 0 is the head of the ring of cached blocks
  std::vector<int32_t> free_;  // a stack
  int cached_count_ = 0;
  int held_count_ = 0;
};

}  // namespace foredraft
