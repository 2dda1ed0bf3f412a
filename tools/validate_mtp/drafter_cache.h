#pragma once

// Reads a drafter's cache rows back from the device. One thread.

#include <cstdint>
#include <vector>

#include "engine/cache/cache_groups.h"
#include "engine/cache/kv_cache.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

// The rows of one MTP module, of a head, or of one of DSpark's stages.
struct DrafterLayerRows {
  CacheHandle keys;        // latents, or keys
  CacheHandle index_keys;  // of an MTP module with an indexer
};

// [module_count], for a model with that many modules or stages; [1] for a head.
std::vector<DrafterLayerRows> RowsOfDrafter(const ModelConfig& config, int module_count);

// The bytes of a row; empty where the position has no memory.
std::vector<uint8_t> ReadCacheRow(Device& device, Stream& stream, const CachedRows& rows, int slot,
                                  int position);

// The bytes of all rows of committed tokens that the drafts after t_P read, P = `last`: rows of an MTP module
// at positions up to P, rows of a stage at positions below P. Rows without memory are left out.
std::vector<uint8_t> ReadDrafterCache(Device& device, Stream& stream, const ModelConfig& config,
                                      const KvCache& cache, int slot, int last);

}  // namespace foredraft
