#include "engine/cache/cache_groups.h"

#include <algorithm>

#include "config/config_defaults.h"
#include "config/config_reader.h"
#include "engine/kinds/compute_model_limits.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/deepseek_v4/deepseek_v4_kind.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/model_kind.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

constexpr int kTokensPerBlock = 32;

ModelConfig R1Config() {
  ModelConfig config;
  config.architecture = "DeepseekV3ForCausalLM";
  config.kind = &kDeepseekV3Kind;
  config.num_hidden_layers = 61;
  config.kv_lora_rank = 512;
  config.qk_rope_head_dim = 64;
  return config;
}

ModelConfig FlashConfig() {
  ModelConfig config;
  config.architecture = "DeepseekV4ForCausalLM";
  config.kind = &kDeepseekV4Kind;
  config.num_hidden_layers = 43;
  config.qk_rope_head_dim = 64;
  config.index_head_dim = 128;
  DeepseekV4Shape& v4 = config.own.emplace<DeepseekV4Shape>();
  v4.layers = {AttentionKind::kWindow, AttentionKind::kWindow};
  for (int i = 0; i < 20; ++i) {
    v4.layers.insert(v4.layers.end(), {AttentionKind::kCompressedSparse, AttentionKind::kHeavilyCompressed});
  }
  v4.layers.push_back(AttentionKind::kCompressedSparse);
  return config;
}

// The number of blocks that `count` adjacent positions touch, where the first is at `first` of a block.
int64_t BlocksOf(int64_t count, int64_t first, int64_t block) { return (first + count - 1) / block + 1; }

TEST(CacheGroups, DeepseekV3HasOne) {
  const std::vector<CacheGroup> groups = CacheGroupsOf(R1Config(), 1, kTokensPerBlock);
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_TRUE(groups[0].is_history());
  EXPECT_EQ(groups[0].bytes_per_block, int64_t{62} * 576 * 2 * 32);
  EXPECT_EQ(HistoryBytesPerToken(groups), 62 * 576 * 2);
  EXPECT_EQ(WindowBytesPerSequence(groups, 3), 0);
}

// docs/deepseek-v3.md section 9: keys of 128 BF16 values beside the latents, of layers with an indexer.
TEST(CacheGroups, KeysOfTheIndexerLieInTheHistory) {
  ModelConfig v32 = R1Config();
  v32.architecture = "DeepseekV32ForCausalLM";
  v32.kind = &kDeepseekV3Kind;
  v32.index_topk = 2048;
  v32.index_head_dim = 128;
  v32.runs_indexer = true;
  const auto bytes = [](const ModelConfig& config, int modules, DType dtype) {
    const std::vector<CacheGroup> groups = CacheGroupsOf(config, modules, kTokensPerBlock, dtype);
    EXPECT_EQ(groups.size(), 1u);
    return HistoryBytesPerToken(groups);
  };
  EXPECT_EQ(bytes(v32, 1, DType::kBF16), 71424 + 15872);
  EXPECT_EQ(bytes(v32, 0, DType::kBF16), 71424 + 15872 - 1152 - 256);
  EXPECT_EQ(bytes(v32, 1, DType::kF8E4M3), 62 * 656 + 15872);
  ModelConfig glm = v32;  // 5.2: 21 of 78 layers and the module
  glm.num_hidden_layers = 78;
  for (int layer = 0; layer < 78; ++layer) glm.shares_selection.push_back(std::max(layer - 2, 0) % 4 != 0);
  EXPECT_EQ(bytes(glm, 1, DType::kBF16), 91008 + 5632);
  v32.runs_indexer = false;
  EXPECT_EQ(bytes(v32, 1, DType::kBF16), 71424);
}

// 21 CSA layers with (512 + 128) values per 4 tokens, 20 HCA layers with 512 per 128, BF16.
TEST(CacheGroups, FlashKeepsAHistoryOf6880BytesPerToken) {
  const std::vector<CacheGroup> groups = CacheGroupsOf(FlashConfig(), 1, kTokensPerBlock);
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_TRUE(groups[0].is_history());
  EXPECT_EQ(groups[0].tokens_per_block, 128);  // whole HCA entries
  EXPECT_EQ(HistoryBytesPerToken(groups), 21 * 640 * 2 / 4 + 20 * 1024 / 128);
}

// An entry takes 448 codes, 7 scales in 32 bytes and 64 rotated values in BF16; the indexer's stay in BF16.
TEST(CacheGroups, FlashsKeysAndEntriesTake608BytesInFp8) {
  const std::vector<CacheGroup> bf16 = CacheGroupsOf(FlashConfig(), 1, kTokensPerBlock),
                                fp8 = CacheGroupsOf(FlashConfig(), 1, kTokensPerBlock, DType::kF8E4M3);
  EXPECT_EQ(HistoryBytesPerToken(fp8), 21 * (608 + 256) / 4 + 20 * 608 / 128);
  ASSERT_EQ(fp8.size(), bf16.size());
  for (size_t i = 0; i < fp8.size(); ++i) {
    EXPECT_EQ(fp8[i].tokens_per_block, bf16[i].tokens_per_block);
    for (size_t j = 0; j < fp8[i].rows.size(); ++j) {
      const bool of_keys = bf16[i].rows[j].row_bytes == 1024 && bf16[i].rows[j].format.dtype == DType::kBF16;
      EXPECT_EQ(fp8[i].rows[j].row_bytes, of_keys ? 608 : bf16[i].rows[j].row_bytes);
    }
  }
}

TEST(CacheGroups, R1HasTheSpecsBytesAndFlashMlasRowInFp8) {
  const ModelConfig r1 = R1Config();
  EXPECT_EQ(HistoryBytesPerToken(CacheGroupsOf(r1, 1, kTokensPerBlock)), 71424);
  EXPECT_EQ(HistoryBytesPerToken(CacheGroupsOf(r1, 1, kTokensPerBlock, DType::kF8E4M3)), 62 * 656);
}

// Rows of one lifetime share a group, whichever part registers them.
TEST(CacheRegistry, MergesRowsOfOneGroup) {
  CacheRegistry registry(kTokensPerBlock);
  const CacheHandle first = registry.AddRecent({.group = "window", .lookback = 7}, {.row_bytes = 10});
  const CacheHandle history = registry.Add({.row_bytes = 6, .positions = 3});
  const CacheHandle second = registry.AddRecent({.group = "window", .lookback = 9}, {.row_bytes = 20});
  registry.AddRecent({.group = "short", .lookback = 0, .tokens_per_block = 5}, {.row_bytes = 1});
  EXPECT_EQ(history.group, 0);
  EXPECT_EQ(first.group, second.group);
  EXPECT_EQ(second.index, 1);
  const std::vector<CacheGroup> groups = registry.Groups();
  ASSERT_EQ(groups.size(), 3u);
  EXPECT_EQ(groups[0].tokens_per_block, 32 * 3 * 5);
  EXPECT_EQ(groups[0].bytes_per_block, 32 * 5 * 6);
  EXPECT_EQ(groups[1].lookback, 9);
  EXPECT_EQ(groups[1].bytes_per_block, 32 * 30);
  EXPECT_EQ(groups[2].lookback, 1) << "a step reads the row before it";
}

// A quarter of RAM has room for the default pool and the windows beside it, and not for one more block.
TEST(CacheGroups, TheDefaultPoolLeavesRoomForTheWindows) {
  ModelConfig model = FlashConfig();
  model.max_position_embeddings = 1 << 20;
  absl::StatusOr<LoadedConfig> loaded =
      ParseConfig({"c.yaml", "model: /m\nmax_batch_size: 16\nmax_seq_len: 1000000", {}, {}});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const int64_t ram = int64_t{64} << 30;
  const ModelLimits limits = ComputeModelLimits(model);
  ASSERT_EQ(ResolveDefaults({.cores = 4, .ram_bytes = ram}, &limits, *loaded), absl::OkStatus());
  const auto [token_bytes, window_bytes] = limits.cache_bytes(loaded->config);
  const int64_t bytes = loaded->config.kv_cache_config.max_tokens * token_bytes + window_bytes;
  EXPECT_LE(bytes, ram / 4);
  EXPECT_GT(bytes, ram / 4 - 33 * token_bytes);
}

TEST(CacheGroups, EverySequenceHasRoomForItsWindows) {
  const std::vector<CacheGroup> groups = CacheGroupsOf(FlashConfig(), 1, kTokensPerBlock);
  const std::vector<int> counts =
      BlockCountsOf(groups, 1000, /*max_batch_size=*/64, /*max_draft_len=*/3, /*rows_ahead=*/3);
  ASSERT_EQ(counts.size(), groups.size());
  EXPECT_EQ(counts[0], 1000);
  for (size_t group = 1; group < groups.size(); ++group) {
    // A step in flight, and the next one: lookback + 3 Kmax + 2 positions; scratch.
    const int decoding = groups[group].lookback + 3 * 3 + 2;
    int64_t most = 0;
    for (int first = 0; first < groups[group].tokens_per_block; ++first) {
      most = std::max(most, BlocksOf(decoding, first, groups[group].tokens_per_block));
    }
    EXPECT_GE(counts[group], 1 + 2 * 64 * most) << groups[group].name;
  }
}

TEST(CacheGroups, FlashKeepsWindowsForItsLastTokens) {
  const std::vector<CacheGroup> groups = CacheGroupsOf(FlashConfig(), 1, kTokensPerBlock);
  const CacheGroup& window = groups[1];
  EXPECT_EQ(window.name, "window");
  EXPECT_EQ(window.lookback, 127);
  // A raw key per layer and module; values and gates of HCA's compressor.
  EXPECT_EQ(window.bytes_per_block, 32 * (44 * 512 * 2 + 20 * 2 * 512 * 4));
  const CacheGroup& tail = groups[2];
  EXPECT_EQ(tail.name, "tail");
  EXPECT_EQ(tail.lookback, 7);  // two windows of 4 tokens
  EXPECT_EQ(tail.tokens_per_block, 8);
  // Values and gates, in two halves, of CSA's compressor and its indexer's.
  EXPECT_EQ(tail.bytes_per_block, 8 * 21 * (2 * 2 * 512 + 2 * 2 * 128) * 4);
}

TEST(CacheGroups, WindowsCoverAStepWhereverBlocksBegin) {
  const std::vector<CacheGroup> groups = CacheGroupsOf(FlashConfig(), 1, kTokensPerBlock);
  for (int draft_len = 0; draft_len <= 7; ++draft_len) {
    int64_t bytes = 0;
    for (const CacheGroup& group : groups) {
      if (group.is_history()) continue;
      int64_t most = 0;
      for (int first = 0; first < group.tokens_per_block; ++first) {
        most = std::max(most, BlocksOf(group.lookback + draft_len + 1, first, group.tokens_per_block));
      }
      bytes += most * group.bytes_per_block;
    }
    EXPECT_EQ(WindowBytesPerSequence(groups, draft_len), bytes) << draft_len;
  }
}

// A prefix ends with a block of the history: then no other group's block may go on behind it.
TEST(CacheGroups, ABlockOfTheHistoryIsWholeBlocksOfAllGroups) {
  ModelConfig config = FlashConfig();
  for (const AttentionKind kind : {AttentionKind::kCompressedSparse, AttentionKind::kHeavilyCompressed}) {
    std::any_cast<DeepseekV4Shape&>(config.own).layers.assign(43, kind);
    for (const int tokens_per_block : {1, 4, 16, 24, 64}) {
      const std::vector<CacheGroup> groups = CacheGroupsOf(config, 1, tokens_per_block);
      for (const CacheGroup& group : groups) {
        EXPECT_EQ(groups[0].tokens_per_block % group.tokens_per_block, 0) << group.name;
      }
    }
  }
}

// Boundaries belong to the history's blocks.
TEST(CacheGroups, LeavesOutGroupsWithoutRowsButNotTheHistory) {
  ModelConfig config = FlashConfig();
  std::any_cast<DeepseekV4Shape&>(config.own).layers.assign(43, AttentionKind::kWindow);
  const std::vector<CacheGroup> groups = CacheGroupsOf(config, 0, kTokensPerBlock);
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].name, "history");
  EXPECT_EQ(groups[1].name, "window");
  EXPECT_EQ(HistoryBytesPerToken(groups), 0);
}

}  // namespace
}  // namespace foredraft
