#pragma once

// What a sequence keeps in the cache, in groups of rows that live equally long (docs/deepseek-v4.md section
// 10). A part of a model that keeps rows registers them (ModelKind::register_rows); pools, block tables, swap
// images, reuse and memory estimates follow from the groups. Nothing here knows what a row holds.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kv_row.h"

namespace foredraft {

// The rows that a part keeps for one layer.
struct CacheRows {
  int row_bytes = 0;
  int positions = 1;  // positions that one row covers; more than 1 for compressed entries
  KvFormat format;    // of the row's values, for the part that reads them
};

// The lifetime of rows that steps read for at most `lookback` positions after their own. Rows whose group has
// the same name share its blocks and live for the longest of their lookbacks.
struct RecentRows {
  std::string_view group;
  int lookback = 0;
  int tokens_per_block = 0;  // of the group; 0: the registry's
};

// Rows of the cache as their part registered them.
struct CacheHandle {
  int group = -1;  // -1: no rows
  int index = 0;   // among the group's

  explicit operator bool() const { return group >= 0; }
};

// Registered rows in each block of their group.
struct BlockRows {
  int rows_per_block = 0;
  int row_bytes = 0;
  KvFormat format;

  int64_t bytes() const { return int64_t{rows_per_block} * row_bytes; }
};

struct CacheGroup {
  std::string name;  // "history", "window", "tail"
  // How many positions before its next row a sequence reads: rows further back have no use. 0: it reads all
  // positions.
  int lookback = 0;
  int tokens_per_block = 0;  // a multiple of the positions of every row in it
  std::vector<BlockRows> rows;
  int64_t bytes_per_block = 0;  // of all `rows`

  bool is_history() const { return lookback == 0; }
  // The blocks that any `positions` adjacent positions may touch, wherever blocks begin.
  int BlocksOfPositions(int positions) const {
    return positions < 2 ? positions : (positions - 2 + tokens_per_block) / tokens_per_block + 1;
  }
};

// Collects the rows of a model's parts. In a block, the rows of a group are in the order of registration.
// Handles depend on that order alone, so every registry gives a part the same handles.
class CacheRegistry {
 public:
  // Blocks have at least tokens_per_block tokens, except in groups that set their own number.
  explicit CacheRegistry(int tokens_per_block);

  // Rows that a sequence reads to its end.
  CacheHandle Add(const CacheRows& rows) { return AddTo(0, rows); }
  CacheHandle AddRecent(const RecentRows& lifetime, const CacheRows& rows);

  // The history comes first, even without rows, because boundaries belong to its blocks. A block of the
  // history covers whole rows and whole blocks of every other group, so that a prefix can end with it.
  std::vector<CacheGroup> Groups() const;

 private:
  struct Group {
    std::string name;
    int lookback;
    int tokens_per_block;
    std::vector<CacheRows> rows;
  };
  CacheHandle AddTo(int group, const CacheRows& rows);

  const int tokens_per_block_;
  std::vector<Group> groups_;
};

// Bytes that a token takes in the history.
int64_t HistoryBytesPerToken(const std::vector<CacheGroup>& groups);

// The most bytes that all groups except the history take for a sequence of any length: the blocks of its last
// `lookback` positions and of draft_len + 1 rows of a step, wherever blocks begin.
int64_t WindowBytesPerSequence(const std::vector<CacheGroup>& groups, int draft_len);

// The blocks of each group's pool, scratch included. The history has `history_blocks`. In the other groups
// each of max_batch_size sequences may have twice the blocks that it takes while it decodes: for the blocks
// that a prefill chunk reads besides those that it leaves, and for the windows of reusable prefixes.
std::vector<int> BlockCountsOf(const std::vector<CacheGroup>& groups, int history_blocks, int max_batch_size,
                               int max_draft_len, int rows_ahead);

}  // namespace foredraft
