#pragma once

// DeepSeek-V4's attention (docs/deepseek-v4.md sections 3 and 4), for prompt rows and generated rows alike:
// the rows of a sequence in a batch are adjacent, in ascending order of position.

#include "engine/model/deepseek_v4/deepseek_v4_cache.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model/forward.h"

namespace foredraft {

// The number of rows whose entries an indexer scores at once: bounds the memory of long contexts.
inline constexpr int kIndexerRowsAtOnce = 256;

// Device memory between the ops of a forward. R rows; letters as in
// engine/model/deepseek_v4/deepseek_v4_weights.h, W = largest number of entries, H = the rank's heads.
struct V4Activations {
  Matrix<float> mix;            // [R, (2 + N) N] of hyper_pre
  Matrix<float> latent;         // [R, q_lora_rank]
  InputRows latent_normed;      // [R, q_lora_rank]
  Matrix<float> q;              // [R, H d]: queries, then the heads' outputs
  Matrix<bf16> q_rotated;       // [R, H d]: queries, then the heads' outputs rotated back
  Matrix<float> kv;             // [R, d]
  uint8_t* keys = nullptr;      // [R] rows of keys (kernels/kv_row.h)
  Matrix<float> values;         // [R, 2 d] of a compressor
  Matrix<float> gates;          // [R, 2 d]
  Matrix<float> index_q;        // [R, index heads * index width]
  Matrix<bf16> index_rotated;   // [R, index heads * index width]
  Matrix<float> index_weights;  // [R, index heads]
  Matrix<float> index_scores;   // [min(R, kIndexerRowsAtOnce), W]
  int32_t* selected = nullptr;  // [R, index_topk]
  Matrix<bf16> grouped;         // [R, wo_b.k]
  int32_t* unmapped = nullptr;  // [1]: a block table without memory, for keys that are not cached
};

// w: any layer's weights; all layers have as many heads.
void AllocateV4(ActivationAllocator& allocate, const ModelConfig& config, const ForwardCapacity& capacity,
                const V4AttentionWeights& w, V4Activations& a);

// What a layer needs besides its rows and weights.
struct V4LayerContext {
  const V4Activations& activations;
  AttentionKind kind = AttentionKind::kWindow;
  V4LayerCache cache;
  int first_position = 0;          // 0 for the target, 1 for the MTP module
  const float* cos_sin = nullptr;  // [positions, rope / 2, 2]: the table of the layer's kind
  // Rows per drafted block (docs/dspark.md): a block's rows attend each other, and their keys are not cached.
  // 0: no blocks; every row's key is cached, and the row attends the window before it.
  int block_rows = 0;
};

// Writes the keys [R, d] of rows whose input to attention is `normed`, to the activations and to the cache.
void V4Keys(const Forward& f, const V4AttentionWeights& w, const V4LayerContext& context,
            const InputRows& normed);

// projected = attention(normed). normed: [R, D], in the forms that V4AttentionInput gives.
void V4Attention(const Forward& f, const V4AttentionWeights& w, const V4LayerContext& context,
                 const InputRows& normed, Matrix<float> projected);

// The forms of `buffer` that attention reads.
InputRows V4AttentionInput(const InputRows& buffer, const V4AttentionWeights& w);

}  // namespace foredraft
