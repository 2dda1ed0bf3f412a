#include "engine/engine_shapes.h"

#include <utility>

#include "engine/model/model_kind.h"
#include "engine/spec/drafter_kind.h"

namespace foredraft {
namespace {

std::vector<CacheGroup> GroupsOf(const EngineOptions& options, const ModelConfig& config) {
  return CacheGroupsOf(config, options.drafter_requirements.module_count, options.tokens_per_block,
                       options.kv_format);
}

}  // namespace

KvCacheShape KvCacheShapeOf(const EngineOptions& options, const ModelConfig& config, int history_blocks) {
  KvCacheShape shape{.groups = GroupsOf(options, config), .block_counts = {}, .boundaries = {}};
  shape.block_counts.assign(shape.groups.size(), 2);
  if (history_blocks > 1) {
    shape.block_counts = BlockCountsOf(shape.groups, history_blocks, options.max_batch_size,
                                       options.max_draft_len, options.drafter_requirements.rows_ahead);
  }
  for (const SlotRow& row : SlotRowsOf(options, config)) {
    if (row.at_boundaries) shape.boundaries.push_back(row);
  }
  return shape;
}

SlotStateShape SlotStateShapeOf(const EngineOptions& options, const ModelConfig& config) {
  std::vector<int> strides;
  for (const CacheGroup& group : GroupsOf(options, config)) {
    strides.push_back(options.blocks_per_slot(group.tokens_per_block));
  }
  return {.slot_count = options.max_batch_size,
          .vocab_size = config.vocab_size,
          .table_strides = std::move(strides),
          .rows = SlotRowsOf(options, config),
          .poison = options.poison_cache};
}

SwapStoreShape SwapStoreShapeOf(const EngineOptions& options, const ModelConfig& config) {
  SwapStoreShape shape{
      .capacity_bytes = options.host_cache_bytes,
      .block_bytes = {},
      .slot_image_bytes = static_cast<int64_t>(SlotState::ImageBytes(SlotStateShapeOf(options, config)))};
  for (const CacheGroup& group : GroupsOf(options, config)) {
    shape.block_bytes.push_back(group.bytes_per_block);
  }
  return shape;
}

std::vector<CacheGroupShape> CacheGroupShapesOf(const EngineOptions& options, const ModelConfig& config) {
  const KvCacheShape cache = KvCacheShapeOf(options, config, options.block_count);
  const SwapStoreShape host = SwapStoreShapeOf(options, config);
  std::vector<CacheGroupShape> shapes;
  for (size_t i = 0; i < cache.groups.size(); ++i) {
    shapes.push_back({.tokens_per_block = cache.groups[i].tokens_per_block,
                      .lookback = cache.groups[i].lookback,
                      .block_count = cache.block_counts[i],
                      .host_frames_per_block = static_cast<int>(host.block_frames(static_cast<int>(i)))});
  }
  return shapes;
}

}  // namespace foredraft
