// How rows of logits are divided over blocks.

#include "kernels/cuda/common/row_blocks.h"

#include <gtest/gtest.h>

namespace foredraft::cuda {
namespace {

TEST(RowBlocks, CoverEveryChunkOnceWithNoIdleBlock) {
  for (const int columns : {1, 4096, 4097, 129280, 1 << 19}) {
    for (const int rows : {1, 2, 7, 33, 128, 700}) {
      for (const int resident : {1, 12, 528, 1056}) {
        const int per_block = ChunksPerBlock(rows, columns, resident);
        const int blocks = BlocksPerRow(rows, columns, resident);
        EXPECT_GE(blocks * per_block, ChunksOf(columns));
        EXPECT_LT((blocks - 1) * per_block, ChunksOf(columns));
      }
    }
  }
}

TEST(RowBlocks, FillTheDeviceOnceAtMost) {
  constexpr int kVocab = 129280;  // 32 chunks
  const struct {
    int rows, blocks;
  } cases[] = {{1, 32}, {4, 32}, {16, 32}, {32, 16}, {128, 4}, {256, 2}, {600, 1}};
  for (const auto& c : cases) EXPECT_EQ(BlocksPerRow(c.rows, kVocab, 528), c.blocks) << c.rows << " rows";
}

}  // namespace
}  // namespace foredraft::cuda
