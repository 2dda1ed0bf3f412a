#ifndef FOREDRAFT_ENGINE_CACHE_GROUPS_H_
#define FOREDRAFT_ENGINE_CACHE_GROUPS_H_

// What a sequence keeps in the cache, in groups of rows that live equally long (docs/deepseek-v4.md section
// 10). This is the one place that knows a model's groups; so far `foredraft info` reads it. DeepSeek-V3 has
// one group.

#include <cstdint>
#include <string>
#include <vector>

#include "config/model_config.h"

namespace foredraft {

struct CacheGroup {
  std::string name;  // "history", "window", "tail"
  // How many positions before a sequence's next row it reads: rows further back have no use. 0: all
  // positions, to the sequence's end.
  int reach = 0;
  int tokens_per_block = 0;     // a multiple of the tokens of every compressed entry in it
  int64_t bytes_per_block = 0;  // of all layers

  bool is_history() const { return reach == 0; }
};

// `module_count` MTP modules take part. Blocks have at least tokens_per_block tokens, but the tail's, which
// are as short as its reach. Groups without rows are left out; the history comes first.
std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block);

// Of the history.
int64_t HistoryBytesPerToken(const std::vector<CacheGroup>& groups);

// The most that the other groups take for a sequence of any length: the blocks of its last `reach` positions
// and of draft_len + 1 rows of a step, wherever blocks begin.
int64_t WindowBytesPerSequence(const std::vector<CacheGroup>& groups, int draft_len);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_CACHE_GROUPS_H_
