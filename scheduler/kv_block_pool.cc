#include "scheduler/kv_block_pool.h"

#include "base/check.h"
#include "scheduler/plan.h"

namespace foredraft {

static_assert(kScratchBlock == 0, "block 0 is the head of the ring of cached blocks");

KvBlockPool::KvBlockPool(int block_count) : blocks_(block_count) {
  CHECK_GE(block_count, 2);
  free_.reserve(block_count - 1);
  for (int32_t block = block_count - 1; block > kScratchBlock; --block) free_.push_back(block);
}

bool KvBlockPool::Allocate(int count, std::vector<int32_t>* blocks, std::vector<int32_t>* evicted) {
  if (count > available()) return false;
  for (int i = 0; i < count; ++i) {
    int32_t block;
    if (!free_.empty()) {
      block = free_.back();
      free_.pop_back();
    } else {
      block = blocks_[kScratchBlock].newer;  // the oldest
      RemoveFromCached(block);
      blocks_[block].indexed = false;
      evicted->push_back(block);
    }
    blocks_[block].ref_count = 1;
    ++held_count_;
    blocks->push_back(block);
  }
  return true;
}

void KvBlockPool::Share(int32_t block) {
  CHECK_NE(block, kScratchBlock);
  Block& b = blocks_[block];
  CHECK(b.ref_count > 0 || b.indexed) << "block-conservation: block " << block << " is free";
  if (b.ref_count == 0) {
    RemoveFromCached(block);
    ++held_count_;
  }
  ++b.ref_count;
}

void KvBlockPool::Release(int32_t block) {
  CHECK_NE(block, kScratchBlock);
  Block& b = blocks_[block];
  CHECK_GT(b.ref_count, 0) << "block-conservation: block " << block << " released twice";
  if (--b.ref_count > 0) return;
  --held_count_;
  if (b.indexed) {
    AppendToCached(block);
  } else {
    free_.push_back(block);
  }
}

void KvBlockPool::MarkIndexed(int32_t block) {
  CHECK_GT(blocks_[block].ref_count, 0);
  CHECK(!blocks_[block].indexed);
  blocks_[block].indexed = true;
}

void KvBlockPool::Unindex(int32_t block) {
  Block& b = blocks_[block];
  CHECK(b.indexed) << "block " << block;
  b.indexed = false;
  if (b.ref_count > 0) return;
  RemoveFromCached(block);
  free_.push_back(block);
}

void KvBlockPool::AppendToCached(int32_t block) {
  Block& head = blocks_[kScratchBlock];
  blocks_[block].older = head.older;
  blocks_[block].newer = kScratchBlock;
  blocks_[head.older].newer = block;
  head.older = block;
  ++cached_count_;
}

void KvBlockPool::RemoveFromCached(int32_t block) {
  Block& b = blocks_[block];
  blocks_[b.older].newer = b.newer;
  blocks_[b.newer].older = b.older;
  --cached_count_;
}

void KvBlockPool::CheckInvariants() const {
  int held = 0;
  int cached = 0;
  for (size_t block = 1; block < blocks_.size(); ++block) {
    CHECK_GE(blocks_[block].ref_count, 0);
    if (blocks_[block].ref_count > 0) {
      ++held;
    } else if (blocks_[block].indexed) {
      ++cached;
    }
  }
  CHECK_EQ(held, held_count_) << "block-conservation: held";
  CHECK_EQ(cached, cached_count_) << "block-conservation: cached";
  CHECK_EQ(free_count() + held + cached, capacity())
      << "block-conservation: free " << free_count() << " + held " << held << " + cached " << cached;
}

}  // namespace foredraft
