#pragma once

// What a sequence keeps in the cache, in groups of rows that live equally long (docs/deepseek-v4.md section
// 10). This is the one place that knows a model's groups and the rows in them. DeepSeek-V3 has one group.

#include <cstdint>
#include <string>
#include <vector>

#include "engine/model/model_config.h"
#include "kernels/dtype.h"

namespace foredraft {

// What a row of the cache holds. DeepSeek-V3 has kLatent alone, DeepSeek-V4 the others.
enum class CacheRow : int32_t {
  kLatent,      // kernels/kv_row.h, by position
  kKey,         // bf16, by position
  kEntry,       // bf16, by window of a compressor
  kIndexEntry,  // bf16, by window of the indexer's compressor
  kState,       // float: a compressor's values and gates, by position
  kIndexState,  // float: the indexer's, by position
};

// The rows of one kind that a layer has in each block of a group.
struct LayerRows {
  CacheRow kind = CacheRow::kLatent;
  int layer = 0;  // MTP module i: num_hidden_layers + i
  int rows_per_block = 0;
  int row_bytes = 0;

  int64_t bytes() const { return int64_t{rows_per_block} * row_bytes; }
};

struct CacheGroup {
  std::string name;  // "history", "window", "tail"
  // How many positions before a sequence's next row it reads: rows further back have no use. 0: all
  // positions, to the sequence's end.
  int reach = 0;
  int tokens_per_block = 0;  // a multiple of the tokens of every compressed entry in it
  std::vector<LayerRows> rows;
  int64_t bytes_per_block = 0;  // of all `rows`

  bool is_history() const { return reach == 0; }
  // The blocks that any `positions` adjacent positions may touch, wherever blocks begin.
  int BlocksOfPositions(int positions) const {
    return positions < 2 ? positions : (positions - 2 + tokens_per_block) / tokens_per_block + 1;
  }
};

// `module_count` MTP modules take part. Blocks have at least tokens_per_block tokens, but the tail's, which
// are as short as its reach. The history comes first, even without rows, because boundaries belong to its
// blocks; other groups without rows are left out. A block of the history is whole blocks of every other
// group, so that a prefix can end with it. kv_dtype: of DeepSeek-V3's latents.
std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block,
                                      DType kv_dtype = DType::kBF16);

// Of the history.
int64_t HistoryBytesPerToken(const std::vector<CacheGroup>& groups);

// The most that the other groups take for a sequence of any length: the blocks of its last `reach` positions
// and of draft_len + 1 rows of a step, wherever blocks begin.
int64_t WindowBytesPerSequence(const std::vector<CacheGroup>& groups, int draft_len);

// The blocks of each group's pool, scratch included. The history has `history_blocks`. Of the other groups
// each of max_batch_size sequences may have twice what it takes while it decodes: for what a prefill chunk
// reads beside what it leaves, and for the windows of reusable prefixes.
std::vector<int> BlockCountsOf(const std::vector<CacheGroup>& groups, int history_blocks, int max_batch_size,
                               int max_draft_len);

}  // namespace foredraft
