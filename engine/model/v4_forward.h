#ifndef FOREDRAFT_ENGINE_MODEL_V4_FORWARD_H_
#define FOREDRAFT_ENGINE_MODEL_V4_FORWARD_H_

// What every recipe of DeepSeek-V4 needs, as one argument, and the memory between its ops.

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/model/batch.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace foredraft {

// The cache of one layer: views of its cache groups (docs/deepseek-v4.md section 10).
struct V4LayerCache {
  PagedRows<bf16> keys;           // by position
  PagedRows<bf16> entries;        // by window; absent in layers of ratio 0
  PagedRows<float> state;         // by position; likewise
  PagedRows<bf16> index_entries;  // by window; of CSA layers
  PagedRows<float> index_state;   // by position; of CSA layers
};

// R rows; letters as in engine/weights/deepseek_v4_weights.h, X = experts per token, W = largest number of
// entries.
struct V4Activations {
  Matrix<float> collapsed;  // [R, D] the streams reduced to one
  Matrix<float> mix;        // [R, (2 + N) N] of hyper_pre
  Matrix<bf16> normed;      // [R, D] input of projections
  Matrix<float> projected;  // [R, D] a block's output

  // Attention.
  Matrix<float> latent;         // [R, q_lora_rank]
  Matrix<bf16> latent_normed;   // [R, q_lora_rank]
  Matrix<float> q;              // [R, H d]: queries, then the heads' outputs
  Matrix<bf16> q_rotated;       // [R, H d]: queries, then the heads' outputs rotated back
  Matrix<float> kv;             // [R, d]
  Matrix<bf16> keys;            // [R, d]
  Matrix<float> values;         // [R, 2 d] of a compressor
  Matrix<float> gates;          // [R, 2 d]
  Matrix<float> index_q;        // [R, index heads * index width]
  Matrix<bf16> index_rotated;   // [R, index heads * index width]
  Matrix<float> index_weights;  // [R, index heads]
  Matrix<float> index_scores;   // [R, W]
  int32_t* selected = nullptr;  // [R, index_topk]
  Matrix<bf16> grouped;         // [R, o_groups * o_lora_rank]

  // Experts.
  Matrix<float> router_logits;        // [R, E]
  int32_t* expert_ids = nullptr;      // [R, X]
  float* expert_weights = nullptr;    // [R, X]
  int32_t* expert_offsets = nullptr;  // [E + 1]
  int32_t* grouped_rows = nullptr;    // [R X]
  int32_t* grouped_index = nullptr;   // [R, X]
  Matrix<float> gate_up;              // [R X, 2 M]
  Matrix<bf16> activated;             // [R X, M]
  Matrix<float> expert_out;           // [R X, D]

  // MTP.
  Matrix<bf16> stream_rows;  // [R N, D] the streams, normed one by one
};

// For forwards of up to `rows` rows at positions below `positions`.
absl::StatusOr<V4Activations> AllocateV4Activations(Device& device, const ModelConfig& config, int rows,
                                                    int positions);

struct V4Forward {
  const Ops& ops;
  Stream& stream;
  const ModelConfig& config;
  const V4Activations& activations;
  const Batch& batch;
  const float* main_cos_sin;      // [positions, rope / 2, 2]: layers of ratio 0
  const float* compress_cos_sin;  // likewise: layers with a compressor

  const DeepseekV4Shape& shape() const { return *config.v4; }
  int rows() const { return batch.index.rows; }
  float norm_eps() const { return static_cast<float>(config.rms_norm_eps); }
  float hc_eps() const { return static_cast<float>(config.v4->hc_eps); }
  // out = x weight^T in the batch's form.
  void Linear(Matrix<float> out, Matrix<const bf16> x, const PackedWeight& weight) const {
    ops.gemm(stream, {.out = out, .x = x, .weight = weight, .form = batch.gemm_form()});
  }
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_V4_FORWARD_H_
