#pragma once

// The sizes of the cache, the slots and the store of swapped sequences of a rank that is built for `options`
// and this model. Pure: the engine, its estimates and the scheduler's options take the same sizes.

#include <vector>

#include "engine/cache/kv_cache_shape.h"
#include "engine/cache/slot_state.h"
#include "engine/cache/swap_store.h"
#include "engine/engine_options.h"
#include "engine/model/model_config.h"
#include "scheduler/cache_group_shape.h"

namespace foredraft {

// history_blocks: of group 0, scratch included; the other groups' counts follow from the options. 1: every
// group has the scratch block and one more, because some ops cannot read unmapped rows.
KvCacheShape KvCacheShapeOf(const EngineOptions& options, const ModelConfig& config, int history_blocks);

SlotStateShape SlotStateShapeOf(const EngineOptions& options, const ModelConfig& config);

SwapStoreShape SwapStoreShapeOf(const EngineOptions& options, const ModelConfig& config);

// The cache groups' shapes as the scheduler needs them, the history first. options.block_count must be set
// (not 0).
std::vector<CacheGroupShape> CacheGroupShapesOf(const EngineOptions& options, const ModelConfig& config);

}  // namespace foredraft
