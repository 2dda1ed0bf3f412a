#pragma once

// What every recipe of DeepSeek-V4 needs, as one argument, and the memory between its ops.

#include "absl/status/statusor.h"
#include "engine/model/activations.h"
#include "engine/model/batch.h"
#include "engine/model/deepseek_v4/deepseek_v4_cache.h"
#include "engine/model/expert_exchange.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "kernels/ops.h"

namespace foredraft {

// Rows whose entries an indexer scores at once, which bounds the memory of long contexts.
inline constexpr int kIndexerRowsAtOnce = 256;

// R rows; letters as in engine/model/deepseek_v4/deepseek_v4_weights.h, W = largest number of entries.
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
  Matrix<float> index_scores;   // [min(R, kIndexerRowsAtOnce), W]
  int32_t* selected = nullptr;  // [R, index_topk]
  Matrix<bf16> grouped;         // [R, o_groups * o_lora_rank]

  // Experts.
  Matrix<float> shared_gate_up;   // [R, 2 M]
  Matrix<bf16> shared_activated;  // [R, M]
  ExpertActivations experts;

  // MTP.
  Matrix<bf16> stream_rows;  // [R N, D] the streams, normed one by one
};

absl::StatusOr<V4Activations> AllocateV4Activations(Device& device, const ModelConfig& config,
                                                    const ForwardCapacity& capacity, int ranks);

struct V4Forward {
  const Ops& ops;
  Stream& stream;
  Communicator& comm;  // joins the ranks that the experts are spread over
  const ModelConfig& config;
  const V4Activations& activations;
  const Batch& batch;
  const float* main_cos_sin;      // [positions, rope / 2, 2]: layers of ratio 0
  const float* compress_cos_sin;  // likewise: layers with a compressor

  const DeepseekV4Shape& shape() const { return *config.v4; }
  int rows() const { return batch.index.rows; }
  ExpertForward experts() const { return {ops, stream, comm, config, activations.experts}; }
  float norm_eps() const { return static_cast<float>(config.rms_norm_eps); }
  float hc_eps() const { return static_cast<float>(config.v4->hc_eps); }
  // out = x weight^T in the batch's form.
  void Linear(Matrix<float> out, Matrix<const bf16> x, const PackedWeight& weight) const {
    ops.gemm(stream, {.out = out, .x = x, .weight = weight, .form = batch.gemm_form()});
  }
};

}  // namespace foredraft
