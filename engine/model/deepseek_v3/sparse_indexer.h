#pragma once

// The indexer of DeepSeek sparse attention (docs/deepseek-v3.md section 9): selects the positions that rows
// attend if they see more than index_topk positions.

#include "engine/cache/cache_groups.h"
#include "engine/cache/kv_cache.h"
#include "engine/model/forward.h"
#include "engine/model/mla.h"

namespace foredraft {

// Hi = index_n_heads, d = index_head_dim. Absent in layers that share the selection of a layer below.
struct SparseIndexerWeights {
  PackedWeight wq_b;                   // [Hi d, q_lora_rank]
  PackedWeight wk_weights;             // [d + Hi, D] bf16: wk stacked on weights_proj
  const float* k_norm = nullptr;       // [d]
  const float* k_norm_bias = nullptr;  // [d]

  explicit operator bool() const { return static_cast<bool>(wq_b); }
};

// Device memory between the indexer's ops. R = capacity.rows, P = capacity.positions.
struct IndexerActivations {
  Matrix<float> q;              // [R, Hi d]
  Matrix<bf16> rotated;         // [R, Hi d]
  Matrix<float> k_weights;      // [R, d + Hi]: a row's key before its norm, then the weights of its heads
  Matrix<float> scores;         // [ScoredRowsAtOnce(P), P]
  int32_t* selected = nullptr;  // [R, index_topk]; outlives the layers that share it
  int32_t* recycled = nullptr;  // [capacity.decode_rows, index_topk]: lists that a recycled module attends
};

// Whether sequences within this capacity may have rows that see more than index_topk positions. If not, the
// indexer would have no effect and does not run.
bool SelectsPositions(const ModelConfig& config, const ForwardCapacity& capacity);

void AllocateIndexer(ActivationAllocator& allocate, const ModelConfig& config,
                     const ForwardCapacity& capacity, IndexerActivations& a);

// Registers the keys of a layer that has an indexer: one per position, kept to the sequence's end.
CacheHandle RegisterIndexKeys(const ModelConfig& config, CacheRegistry& registry);
PagedRows<bf16> IndexKeysOf(const KvCache& cache, CacheHandle rows);

// What a layer's attention needs if its model selects positions.
struct IndexerContext {
  const IndexerActivations* activations = nullptr;  // null: the indexer does not run
  PagedRows<bf16> keys;                             // absent in layers that share a selection
};

struct IndexerInput {
  const InputRows& normed;   // [R, D], as wk_weights reads it
  const InputRows& queries;  // [R, q_lora_rank]: the normed latents, as wq_b reads them
};

// For a recycled module: copies the lists of rows f.batch.list_rows from the forward that selected last. A
// recycled module selects nothing and needs no keys.
void TakeSelected(const Forward& f, const IndexerActivations& a);

// Writes the keys of all rows, then selects positions for the rows that see more than index_topk.
void SelectPositions(const Forward& f, const SparseIndexerWeights& w, const IndexerContext& context,
                     const AttentionContext& attention, const IndexerInput& input);

}  // namespace foredraft
