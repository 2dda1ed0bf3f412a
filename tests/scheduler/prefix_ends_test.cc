#include "scheduler/prefix_ends.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Two windows. The ends of the history blocks 4 and 5 share block 2 of the first.
class PrefixEndsTest : public testing::Test {
 protected:
  PrefixEndsTest() {
    ends_.Add(4, {{1, 2}, {7}});
    ends_.Add(5, {{2, 3}, {8}});
  }
  std::vector<int32_t> UnreadOf(int group) const {
    std::vector<int32_t> blocks;
    for (const PrefixEnds::WindowBlock& unread : unread_) {
      if (unread.group == group) blocks.push_back(unread.block);
    }
    return blocks;
  }

  PrefixEnds ends_{{10, 10, 10}};
  std::vector<PrefixEnds::WindowBlock> unread_;
};

TEST_F(PrefixEndsTest, KeepsTheBlocksOfAnEndInOrder) {
  EXPECT_THAT(ends_.blocks(4, 1), ElementsAre(1, 2));
  EXPECT_THAT(ends_.blocks(5, 2), ElementsAre(8));
  EXPECT_FALSE(ends_.contains(6));
  EXPECT_EQ(ends_.size(), 2u);
}

TEST_F(PrefixEndsTest, NamesTheBlocksThatNoOtherEndReads) {
  ends_.Erase(4, &unread_);
  EXPECT_THAT(UnreadOf(1), ElementsAre(1));
  EXPECT_THAT(UnreadOf(2), ElementsAre(7));
  EXPECT_TRUE(ends_.is_read(1, 2));
  EXPECT_FALSE(ends_.contains(4));
  ends_.Erase(4, &unread_);  // no end any more
  EXPECT_EQ(unread_.size(), 2u);
}

TEST_F(PrefixEndsTest, ErasesAllEndsThatReadABlock) {
  ends_.EraseReaders(1, 2, &unread_);
  EXPECT_EQ(ends_.size(), 0u);
  EXPECT_THAT(UnreadOf(1), testing::UnorderedElementsAre(1, 2, 3));
  EXPECT_THAT(UnreadOf(2), testing::UnorderedElementsAre(7, 8));
  EXPECT_FALSE(ends_.is_read(1, 2));
  unread_.clear();
  ends_.EraseReaders(1, 2, &unread_);
  EXPECT_THAT(unread_, IsEmpty());
}

}  // namespace
}  // namespace foredraft
