#include "scheduler/prefix_index.h"

#include <gtest/gtest.h>

#include <vector>

namespace foredraft {
namespace {

using Tokens = std::vector<int32_t>;

TEST(PrefixIndex, FindsABlockOnlyBehindItsOwnPrefix) {
  PrefixIndex index(10);
  const auto a = index.Insert(PrefixIndex::kRoot, Tokens{1, 2}, 5);
  const auto ab = index.Insert(a.id, Tokens{3, 4}, 6);
  EXPECT_EQ(index.Find(PrefixIndex::kRoot, Tokens{1, 2}).block, 5);
  EXPECT_EQ(index.Find(a.id, Tokens{3, 4}).id, ab.id);
  EXPECT_EQ(index.Find(PrefixIndex::kRoot, Tokens{3, 4}).id, 0u);
  EXPECT_EQ(index.Find(a.id, Tokens{3, 5}).id, 0u);
  EXPECT_EQ(index.Find(ab.id, Tokens{3, 4}).id, 0u);
}

TEST(PrefixIndex, ScopesHaveRootsOfTheirOwn) {
  PrefixIndex index(10);
  EXPECT_EQ(PrefixIndex::RootOf(0), PrefixIndex::kRoot);
  index.Insert(PrefixIndex::RootOf(1), Tokens{1, 2}, 5);
  index.Insert(PrefixIndex::RootOf(2), Tokens{1, 2}, 6);
  EXPECT_EQ(index.Find(PrefixIndex::RootOf(0), Tokens{1, 2}).id, 0u);
  EXPECT_EQ(index.Find(PrefixIndex::RootOf(1), Tokens{1, 2}).block, 5);
  EXPECT_EQ(index.Find(PrefixIndex::RootOf(2), Tokens{1, 2}).block, 6);
}

TEST(PrefixIndex, KeepsTheFirstOfTwoEqualBlocks) {
  PrefixIndex index(10);
  const auto first = index.Insert(PrefixIndex::kRoot, Tokens{1, 2}, 5);
  const auto second = index.Insert(PrefixIndex::kRoot, Tokens{1, 2}, 7);
  EXPECT_EQ(second.block, 5);
  EXPECT_EQ(second.id, first.id);
  EXPECT_FALSE(index.contains(7));
  EXPECT_EQ(index.size(), 1u);
}

TEST(PrefixIndex, NeverFindsTheChildOfAnErasedBlockAgain) {
  PrefixIndex index(10);
  const auto a = index.Insert(PrefixIndex::kRoot, Tokens{1, 2}, 5);
  index.Insert(a.id, Tokens{3, 4}, 6);
  index.Erase(5);
  // Block 5 comes back with other tokens, then with the same: neither is the parent of block 6.
  const auto other = index.Insert(PrefixIndex::kRoot, Tokens{9, 9}, 5);
  EXPECT_EQ(index.Find(other.id, Tokens{3, 4}).id, 0u);
  const auto again = index.Insert(PrefixIndex::kRoot, Tokens{1, 2}, 8);
  EXPECT_EQ(index.Find(again.id, Tokens{3, 4}).id, 0u);
  index.Erase(6);  // an orphan is erased like any other block
  EXPECT_EQ(index.size(), 2u);
}

}  // namespace
}  // namespace foredraft
