#include "engine/cache_groups.h"

#include <algorithm>
#include <numeric>

#include "kernels/kv_row.h"

namespace foredraft {
namespace {

constexpr int kRowElementBytes = 2;    // bf16: keys and entries
constexpr int kStateElementBytes = 4;  // float: a token's values and gates until its windows are complete

// The rows of the layers with a compressor. `overlapping`: a token's values and gates have two halves each.
void AddCompressor(CacheGroup& history, CacheGroup& state, int layer, int ratio, bool overlapping, int width,
                   CacheRow entry_kind, CacheRow state_kind) {
  history.rows.push_back({entry_kind, layer, history.tokens_per_block / ratio, width * kRowElementBytes});
  const int channels = (overlapping ? 2 : 1) * width;
  state.rows.push_back({state_kind, layer, state.tokens_per_block, 2 * channels * kStateElementBytes});
}

std::vector<CacheGroup> GroupsOfV4(const ModelConfig& config, int module_count, int tokens_per_block) {
  const DeepseekV4Shape& v4 = *config.v4;
  const auto has = [&](AttentionKind kind) {
    return std::find(v4.layers.begin(), v4.layers.end(), kind) != v4.layers.end();
  };
  const bool sparse = has(AttentionKind::kCompressedSparse), heavy = has(AttentionKind::kHeavilyCompressed);

  CacheGroup history{.name = "history", .tokens_per_block = tokens_per_block};
  CacheGroup window{.name = "window", .reach = v4.sliding_window - 1, .tokens_per_block = tokens_per_block};
  // A step reads at least the row before it (`reach` 0 means all).
  window.reach = std::max(window.reach, heavy ? v4.heavy_ratio - 1 : 1);
  CacheGroup tail{.name = "tail", .reach = 2 * v4.sparse_ratio - 1, .tokens_per_block = 2 * v4.sparse_ratio};
  if (sparse) history.tokens_per_block = std::lcm(history.tokens_per_block, tail.tokens_per_block);
  if (heavy) history.tokens_per_block = std::lcm(history.tokens_per_block, v4.heavy_ratio);

  for (int layer = 0; layer < config.num_hidden_layers + module_count; ++layer) {
    window.rows.push_back({CacheRow::kKey, layer, window.tokens_per_block, v4.head_dim * kRowElementBytes});
    if (v4.Kind(layer) == AttentionKind::kHeavilyCompressed) {
      AddCompressor(history, window, layer, v4.heavy_ratio, false, v4.head_dim, CacheRow::kEntry,
                    CacheRow::kState);
    } else if (v4.Kind(layer) == AttentionKind::kCompressedSparse) {
      AddCompressor(history, tail, layer, v4.sparse_ratio, true, v4.head_dim, CacheRow::kEntry,
                    CacheRow::kState);
      AddCompressor(history, tail, layer, v4.sparse_ratio, true, config.index_head_dim, CacheRow::kIndexEntry,
                    CacheRow::kIndexState);
    }
  }
  return {history, window, tail};
}

CacheGroup GroupOfV3(const ModelConfig& config, int module_count, int tokens_per_block, DType kv_dtype) {
  const KvRowLayout row = {config.kv_lora_rank, config.qk_rope_head_dim, kv_dtype == DType::kF8E4M3};
  CacheGroup history{.name = "history", .tokens_per_block = tokens_per_block};
  for (int layer = 0; layer < config.num_hidden_layers + module_count; ++layer) {
    history.rows.push_back({CacheRow::kLatent, layer, tokens_per_block, row.bytes()});
  }
  return history;
}

}  // namespace

std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block,
                                      DType kv_dtype) {
  std::vector<CacheGroup> groups;
  if (config.v4) {
    groups = GroupsOfV4(config, module_count, tokens_per_block);
  } else {
    groups.push_back(GroupOfV3(config, module_count, tokens_per_block, kv_dtype));
  }
  for (CacheGroup& group : groups) {
    for (const LayerRows& rows : group.rows) group.bytes_per_block += rows.bytes();
  }
  std::erase_if(groups, [](const CacheGroup& group) { return group.rows.empty() && !group.is_history(); });
  return groups;
}

int64_t HistoryBytesPerToken(const std::vector<CacheGroup>& groups) {
  return groups.front().bytes_per_block / groups.front().tokens_per_block;
}

int64_t WindowBytesPerSequence(const std::vector<CacheGroup>& groups, int draft_len) {
  int64_t bytes = 0;
  for (const CacheGroup& group : groups) {
    if (group.is_history()) continue;
    bytes += group.BlocksOfPositions(group.reach + draft_len + 1) * group.bytes_per_block;
  }
  return bytes;
}

std::vector<int> BlockCountsOf(const std::vector<CacheGroup>& groups, int history_blocks, int max_batch_size,
                               int max_draft_len) {
  constexpr int kPrefixEnds = 4;  // that even a single sequence can keep
  std::vector<int> counts;
  for (const CacheGroup& group : groups) {
    // With a step in flight: reach, and the positions that it and the next step may write.
    const int decoding = group.BlocksOfPositions(group.reach + 3 * max_draft_len + 2);
    counts.push_back(group.is_history() ? history_blocks
                                        : 1 + 2 * max_batch_size * decoding +
                                              kPrefixEnds * group.BlocksOfPositions(group.reach));
  }
  return counts;
}

}  // namespace foredraft
