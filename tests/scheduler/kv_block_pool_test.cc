#include "scheduler/kv_block_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class KvBlockPoolTest : public testing::Test {
 protected:
  std::vector<int32_t> Take(int count) {
    std::vector<int32_t> blocks;
    EXPECT_TRUE(pool_.Allocate(count, &blocks, &evicted_));
    pool_.CheckInvariants();
    return blocks;
  }
  // Frees indexed blocks in the order given: the first is the least recently used.
  void Cache(const std::vector<int32_t>& blocks) {
    for (int32_t block : blocks) pool_.MarkIndexed(block);
    for (int32_t block : blocks) pool_.Release(block);
  }

  KvBlockPool pool_{6};
  std::vector<int32_t> evicted_;
};

TEST_F(KvBlockPoolTest, HandsOutEveryBlockButScratch) {
  EXPECT_THAT(Take(5), testing::UnorderedElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(pool_.available(), 0);
  EXPECT_EQ(pool_.held_count(), 5);
}

TEST_F(KvBlockPoolTest, RefusesMoreThanItHas) {
  Take(3);
  std::vector<int32_t> blocks;
  EXPECT_FALSE(pool_.Allocate(3, &blocks, &evicted_));
  EXPECT_THAT(blocks, IsEmpty());
  EXPECT_EQ(pool_.free_count(), 2);
}

TEST_F(KvBlockPoolTest, FreesABlockWithItsLastReference) {
  const std::vector<int32_t> blocks = Take(1);
  pool_.Share(blocks[0]);
  pool_.Release(blocks[0]);
  EXPECT_EQ(pool_.held_count(), 1);
  pool_.Release(blocks[0]);
  EXPECT_EQ(pool_.free_count(), 5);
  pool_.CheckInvariants();
}

TEST_F(KvBlockPoolTest, KeepsIndexedBlocksAndEvictsTheLeastRecentlyUsed) {
  const std::vector<int32_t> blocks = Take(3);
  Cache({blocks[1], blocks[0], blocks[2]});
  EXPECT_EQ(pool_.cached_count(), 3);
  Take(2);  // the free ones first
  EXPECT_THAT(evicted_, IsEmpty());
  EXPECT_THAT(Take(2), ElementsAre(blocks[1], blocks[0]));
  EXPECT_THAT(evicted_, ElementsAre(blocks[1], blocks[0]));
  EXPECT_FALSE(pool_.indexed(blocks[0]));
  EXPECT_TRUE(pool_.indexed(blocks[2]));
}

TEST_F(KvBlockPoolTest, SharingACachedBlockSavesItFromEviction) {
  const std::vector<int32_t> blocks = Take(2);
  Cache(blocks);
  pool_.Share(blocks[0]);
  EXPECT_EQ(pool_.available(), 4);
  Take(4);
  EXPECT_THAT(evicted_, ElementsAre(blocks[1]));
  pool_.Release(blocks[0]);
  EXPECT_EQ(pool_.cached_count(), 1);
  pool_.CheckInvariants();
}

TEST_F(KvBlockPoolTest, FreesABlockThatTheIndexGivesUp) {
  const std::vector<int32_t> blocks = Take(2);
  for (int32_t block : blocks) pool_.MarkIndexed(block);
  pool_.Release(blocks[0]);
  pool_.Unindex(blocks[0]);  // cached
  EXPECT_EQ(pool_.free_count(), 4);
  pool_.Unindex(blocks[1]);  // held
  EXPECT_EQ(pool_.held_count(), 1);
  pool_.CheckInvariants();
  pool_.Release(blocks[1]);
  EXPECT_EQ(pool_.free_count(), 5);
  EXPECT_EQ(pool_.cached_count(), 0);
}

using KvBlockPoolDeathTest = KvBlockPoolTest;

TEST_F(KvBlockPoolDeathTest, AbortsOnABlockReleasedTwice) {
  const std::vector<int32_t> blocks = Take(1);
  pool_.Release(blocks[0]);
  EXPECT_DEATH(pool_.Release(blocks[0]), "block-conservation");
}

TEST_F(KvBlockPoolDeathTest, AbortsOnSharingAFreeBlock) {
  EXPECT_DEATH(pool_.Share(3), "block-conservation");
}

}  // namespace
}  // namespace foredraft
