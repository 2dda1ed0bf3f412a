#include "engine/cache/cache_groups.h"

#include <algorithm>
#include <numeric>

#include "base/check.h"

namespace foredraft {

CacheRegistry::CacheRegistry(int tokens_per_block) : tokens_per_block_(tokens_per_block) {
  groups_.push_back({.name = "history", .lookback = 0, .tokens_per_block = tokens_per_block, .rows = {}});
}

CacheHandle CacheRegistry::AddRecent(const RecentRows& lifetime, const CacheRows& rows) {
  // At least 1: a step reads the row before it, and a lookback of 0 would mean all rows.
  const int lookback = std::max(lifetime.lookback, 1);
  const int tokens = lifetime.tokens_per_block == 0 ? tokens_per_block_ : lifetime.tokens_per_block;
  size_t index = 1;
  while (index < groups_.size() && groups_[index].name != lifetime.group) ++index;
  if (index == groups_.size()) {
    groups_.push_back({std::string(lifetime.group), lookback, tokens, {}});
  }
  Group& group = groups_[index];
  CHECK_EQ(group.tokens_per_block, tokens) << group.name;
  group.lookback = std::max(group.lookback, lookback);
  return AddTo(static_cast<int>(index), rows);
}

CacheHandle CacheRegistry::AddTo(int group, const CacheRows& rows) {
  groups_[group].rows.push_back(rows);
  return {.group = group, .index = static_cast<int>(groups_[group].rows.size()) - 1};
}

std::vector<CacheGroup> CacheRegistry::Groups() const {
  std::vector<CacheGroup> groups;
  for (const Group& registered : groups_) {
    CacheGroup& group = groups.emplace_back();
    group.name = registered.name;
    group.lookback = registered.lookback;
    group.tokens_per_block = registered.tokens_per_block;
    if (group.is_history()) {
      for (const CacheRows& rows : registered.rows) {
        group.tokens_per_block = std::lcm(group.tokens_per_block, rows.positions);
      }
      for (const Group& other : groups_) {
        group.tokens_per_block = std::lcm(group.tokens_per_block, other.tokens_per_block);
      }
    }
    for (const CacheRows& rows : registered.rows) {
      CHECK_EQ(group.tokens_per_block % rows.positions, 0) << group.name;
      group.rows.push_back({.rows_per_block = group.tokens_per_block / rows.positions,
                            .row_bytes = rows.row_bytes,
                            .format = rows.format});
      group.bytes_per_block += group.rows.back().bytes();
    }
  }
  return groups;
}

int64_t HistoryBytesPerToken(const std::vector<CacheGroup>& groups) {
  return groups.front().bytes_per_block / groups.front().tokens_per_block;
}

int64_t WindowBytesPerSequence(const std::vector<CacheGroup>& groups, int draft_len) {
  int64_t bytes = 0;
  for (const CacheGroup& group : groups) {
    if (group.is_history()) continue;
    bytes += group.BlocksOfPositions(group.lookback + draft_len + 1) * group.bytes_per_block;
  }
  return bytes;
}

std::vector<int> BlockCountsOf(const std::vector<CacheGroup>& groups, int history_blocks, int max_batch_size,
                               int max_draft_len, int rows_ahead) {
  constexpr int kPrefixEnds = 4;  // prefix ends whose windows even a single sequence can keep
  std::vector<int> counts;
  for (const CacheGroup& group : groups) {
    // Covers the lookback, and the positions that a step in flight and the next step may write.
    const int decoding = group.BlocksOfPositions(group.lookback + 2 * max_draft_len + rows_ahead + 2);
    counts.push_back(group.is_history() ? history_blocks
                                        : 1 + 2 * max_batch_size * decoding +
                                              kPrefixEnds * group.BlocksOfPositions(group.lookback));
  }
  return counts;
}

}  // namespace foredraft
