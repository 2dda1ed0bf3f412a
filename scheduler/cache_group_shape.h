#pragma once

// The sizes of a cache group (docs/deepseek-v4.md section 10), which configuration and model decide at the
// start, and how many of its blocks a sequence takes. Plain data, pure functions.
//
// The first group is the history: its rows are read to the sequence's end. The others are windows: rows
// further back than `lookback` are not read again. Kmax is max_draft_len, and A the drafter's rows_ahead.

#include <algorithm>

namespace foredraft {

struct CacheGroupShape {
  int tokens_per_block = 32;
  // A step that starts at length p reads positions p - lookback and later, whatever it writes. 0: all
  // positions, which is what makes a group the history. A drafter whose rows reach back further makes it
  // longer.
  int lookback = 0;
  int block_count = 2049;         // per rank, block 0 (scratch) included
  int host_frames_per_block = 1;  // of the store of swapped sequences

  bool is_history() const { return lookback == 0; }

  // The blocks of positions 0 .. positions - 1.
  int BlocksFor(int positions) const { return (positions + tokens_per_block - 1) / tokens_per_block; }

  // The table index of the first block that a step at length `position` reads.
  int FirstIndex(int position) const {
    return is_history() ? 0 : std::max(0, position - lookback) / tokens_per_block;
  }

  // The most blocks that this many adjacent positions touch, wherever the first one is in its block.
  int BlocksAnywhere(int positions) const {
    return positions <= 1 ? positions : (positions - 2 + tokens_per_block) / tokens_per_block + 1;
  }

  // Window: the blocks that a prefix end reads. An end is at a border of blocks.
  int EndBlocks() const { return BlocksFor(lookback); }

  // The most blocks that a sequence owns while it decodes; all_positions: those that it may ever own. In a
  // window it owns positions length_lower - lookback .. length_upper + K + A (plan-bound in scheduler.h). The
  // one step that may be without a result adds at most Kmax + 1 to length_upper and 1 to length_lower, so
  // these are at most lookback + 2 Kmax + A + 1 positions.
  int DecodeExtent(int all_positions, int max_draft_len, int rows_ahead) const {
    if (is_history()) return BlocksFor(all_positions);
    return std::min(BlocksFor(all_positions), BlocksAnywhere(lookback + 2 * max_draft_len + rows_ahead + 1));
  }

  // The blocks that a prompt takes at its admission, without those of a reused prefix. prompt_positions: the
  // positions that it owns when it ends, Kmax + A + 1 more than its tokens. Window: the blocks that a chunk
  // reads, those of the prefix ends that the prompt keeps, and those that the chunk leaves for the next chunk
  // or for the first decode step.
  int FreshBlocks(int prompt_positions, int reused_len, int end_count, int max_draft_len,
                  int rows_ahead) const {
    const int whole = BlocksFor(prompt_positions) - reused_len / tokens_per_block;
    if (is_history()) return whole;
    return std::min(whole, BlocksAnywhere(lookback) + end_count * EndBlocks() +
                               BlocksAnywhere(lookback + max_draft_len + rows_ahead + 1));
  }

  // The most blocks that a prompt holds, however much of it is reused: FreshBlocks and one more end, the
  // reused one.
  int PromptBlocks(int prompt_positions, int end_count, int max_draft_len, int rows_ahead) const {
    if (is_history()) return BlocksFor(prompt_positions);
    return FreshBlocks(prompt_positions, /*reused_len=*/0, end_count + 1, max_draft_len, rows_ahead);
  }

  // The most blocks that a sequence owns until its last prompt chunk is committed.
  int PromptExtent(int all_positions, int end_count, int max_draft_len, int rows_ahead) const {
    if (is_history()) return BlocksFor(all_positions);
    return std::min(BlocksFor(all_positions),
                    BlocksAnywhere(lookback) + (end_count + 1) * EndBlocks() +
                        BlocksAnywhere(lookback + 2 * max_draft_len + rows_ahead + 1));
  }
};

}  // namespace foredraft
