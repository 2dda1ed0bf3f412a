#include "engine/cache_group_shapes.h"

#include "engine/kv_cache.h"
#include "engine/swap_store.h"

namespace foredraft {

std::vector<CacheGroupShape> CacheGroupShapesOf(const EngineOptions& options, const ModelConfig& config) {
  const KvCacheShape cache = KvCacheShape::Of(options, config, options.block_count);
  const SwapStoreShape host = SwapStoreShape::Of(options, config);
  std::vector<CacheGroupShape> shapes;
  for (size_t i = 0; i < cache.groups.size(); ++i) {
    shapes.push_back({.tokens_per_block = cache.groups[i].tokens_per_block,
                      .reach = cache.groups[i].reach,
                      .block_count = cache.block_counts[i],
                      .host_frames_per_block = static_cast<int>(host.block_frames(static_cast<int>(i)))});
  }
  return shapes;
}

}  // namespace foredraft
