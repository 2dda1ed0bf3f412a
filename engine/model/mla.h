#pragma once

// Multi-head latent attention (docs/deepseek-v3.md 3.1-3.3): projections, rope, cache write, then one of two
// forms. Prefill expands keys and values from the cached latents; decode absorbs W_UK and W_UV and attends
// the latents.

#include "engine/cache_groups.h"
#include "engine/kv_cache.h"
#include "engine/model/deepseek_v3/model_weights.h"
#include "engine/model/forward.h"

namespace foredraft {

// What attention reads beside its rows: the layer's cache, the lowest position of its level, the rope table.
struct AttentionContext {
  KvLayer cache;
  int32_t first_position = 0;      // 0 target, i for MTP module i (docs/speculation.md section 0)
  const float* cos_sin = nullptr;  // [positions, rope / 2, 2]
};

// The latents of one layer: every position, to the sequence's end.
CacheHandle RegisterLatents(const ModelConfig& config, DType kv_dtype, CacheRegistry& registry);
KvLayer LatentsOf(const ModelConfig& config, const KvCache& cache, CacheHandle rows);

// projected = attention(normed), to be added to the residual stream. normed: [R, D], as w.qkv_a reads it.
void LatentAttention(const Forward& f, const MlaWeights& w, const AttentionContext& context,
                     const InputRows& normed, Matrix<float> projected);

}  // namespace foredraft
