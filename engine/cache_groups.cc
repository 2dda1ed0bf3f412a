#include "engine/cache_groups.h"

#include <algorithm>
#include <numeric>

namespace foredraft {
namespace {

constexpr int64_t kRowElementBytes = 2;    // bf16: keys and entries
constexpr int64_t kStateElementBytes = 4;  // float: a token's values and gates until its windows are complete

std::vector<CacheGroup> GroupsOfV4(const ModelConfig& config, int module_count, int tokens_per_block) {
  const DeepseekV4Shape& v4 = *config.v4;
  const auto count = [&](AttentionKind kind) {
    return static_cast<int64_t>(std::count(v4.layers.begin(), v4.layers.end(), kind));
  };
  const int64_t sparse = count(AttentionKind::kCompressedSparse);
  const int64_t heavy = count(AttentionKind::kHeavilyCompressed);

  CacheGroup history{.name = "history", .tokens_per_block = tokens_per_block};
  CacheGroup window{.name = "window", .reach = v4.sliding_window - 1, .tokens_per_block = tokens_per_block};
  // A step reads at least the row before it (`reach` 0 means all).
  window.reach = std::max(window.reach, heavy > 0 ? v4.heavy_ratio - 1 : 1);
  CacheGroup tail{.name = "tail", .reach = 2 * v4.sparse_ratio - 1, .tokens_per_block = 2 * v4.sparse_ratio};
  if (sparse > 0) history.tokens_per_block = std::lcm(history.tokens_per_block, v4.sparse_ratio);
  if (heavy > 0) history.tokens_per_block = std::lcm(history.tokens_per_block, v4.heavy_ratio);

  const int64_t sparse_entry = v4.head_dim + config.index_head_dim;
  history.bytes_per_block =
      kRowElementBytes * (sparse * sparse_entry * (history.tokens_per_block / v4.sparse_ratio) +
                          heavy * v4.head_dim * (history.tokens_per_block / v4.heavy_ratio));
  const int64_t keys = (config.num_hidden_layers + module_count) * int64_t{v4.head_dim};
  window.bytes_per_block =
      window.tokens_per_block * (kRowElementBytes * keys + kStateElementBytes * heavy * 2 * v4.head_dim);
  tail.bytes_per_block = tail.tokens_per_block * kStateElementBytes * sparse * 4 * sparse_entry;
  return {history, window, tail};
}

}  // namespace

std::vector<CacheGroup> CacheGroupsOf(const ModelConfig& config, int module_count, int tokens_per_block) {
  std::vector<CacheGroup> groups;
  if (config.v4) {
    groups = GroupsOfV4(config, module_count, tokens_per_block);
  } else {
    const int64_t row = int64_t{config.kv_lora_rank} + config.qk_rope_head_dim;
    groups.push_back({.name = "history",
                      .tokens_per_block = tokens_per_block,
                      .bytes_per_block = (config.num_hidden_layers + module_count) * row * kRowElementBytes *
                                         tokens_per_block});
  }
  std::erase_if(groups, [](const CacheGroup& group) { return group.bytes_per_block == 0; });
  return groups;
}

int64_t HistoryBytesPerToken(const std::vector<CacheGroup>& groups) {
  for (const CacheGroup& group : groups) {
    if (group.is_history()) return group.bytes_per_block / group.tokens_per_block;
  }
  return 0;
}

int64_t WindowBytesPerSequence(const std::vector<CacheGroup>& groups, int draft_len) {
  int64_t bytes = 0;
  for (const CacheGroup& group : groups) {
    if (group.is_history()) continue;
    const int64_t positions = int64_t{group.reach} + draft_len + 1;
    // The first and the last block may have one of these positions only.
    const int64_t blocks = (positions - 2 + group.tokens_per_block) / group.tokens_per_block + 1;
    bytes += blocks * group.bytes_per_block;
  }
  return bytes;
}

}  // namespace foredraft
