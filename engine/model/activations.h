#ifndef FOREDRAFT_ENGINE_MODEL_ACTIVATIONS_H_
#define FOREDRAFT_ENGINE_MODEL_ACTIVATIONS_H_

// Device memory between the ops of one forward, allocated once and shared by all layers. Nothing in it
// outlives a forward. Owner: DeepseekV3.

#include <algorithm>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// Rows of each rank that a mixture of experts expands at once: bounds the memory of long prefills. No more
// than 2048 of all ranks, since one rank's experts may be chosen by all of them.
constexpr int MoeRowsAtOnce(int ranks) { return std::min(512, 2048 / ranks); }

// Rows on their way into products. On a device that quantizes_rows the op that makes them writes, for an FP8
// weight, the quantised form, so that the product need not.
struct InputRows {
  Matrix<bf16> as_bf16;
  QuantizedRows as_f8;  // absent on other devices

  int32_t rows() const { return as_bf16.rows; }
  InputRows first_rows(int32_t count) const { return {as_bf16.first_rows(count), as_f8.first_rows(count)}; }
  // first: a multiple of 4.
  InputRows row_range(int32_t first, int32_t count) const {
    return {as_bf16.row_range(first, count), as_f8 ? as_f8.row_range(first, count) : as_f8};
  }
  InputRows first_columns(int32_t count) const {
    return {as_bf16.columns(0, count), as_f8.first_columns(count)};
  }
  // Both forms, if the weight reads the quantised one.
  InputRows BothFor(const PackedWeight& weight) const {
    return {as_bf16, weight.dtype == DType::kF8E4M3 ? as_f8 : QuantizedRows{}};
  }
  // The form that the weight reads, alone; of the other one the shape.
  InputRows For(const PackedWeight& weight) const {
    InputRows rows = BothFor(weight);
    if (rows.as_f8) rows.as_bf16.data = nullptr;
    return rows;
  }
};

// R = row capacity, C = context capacity, N = ranks, M = min(R, MoeRowsAtOnce(N)), X = experts per token.
struct Activations {
  Matrix<float> hidden;  // [R, D] residual stream
  InputRows normed;      // [R, D] input of the next projection

  // Attention.
  Matrix<float> qkv_a;     // [R, q_lora + latent + rope]
  InputRows q_a;           // [R, q_lora]
  Matrix<float> q;         // [R, H * qk_head_dim]
  Matrix<bf16> q_roped;    // [R, H * qk_head_dim]
  Matrix<bf16> q_lat;      // [R, H * latent] decode form
  Matrix<bf16> o_lat;      // [R, H * latent] decode form
  Matrix<bf16> attention;  // [R, H * v]
  Matrix<bf16> latent;     // [C, latent] prefill form
  Matrix<bf16> k_pe;       // [C, rope] prefill form
  Matrix<bf16> kv;         // [C, H * (nope + v)] prefill form

  // Experts and dense MLP.
  Matrix<float> projected;            // [R, D] what a layer's half adds to the residual stream
  Matrix<float> gate_up;              // [R, 2 I]
  InputRows activated;                // [R, I]
  Matrix<float> router_logits;        // [M, E]
  int32_t* expert_ids = nullptr;      // [M, X]
  float* expert_weights = nullptr;    // [M, X]
  int32_t* expert_offsets = nullptr;  // [E + 1]
  int32_t* grouped_rows = nullptr;    // [N * M * X]
  int32_t* grouped_index = nullptr;   // [N * M, X]
  Matrix<float> expert_gate_up;       // [N * M * X, 2 I_e]
  InputRows expert_activated;         // [N * M * X, I_e]
  Matrix<float> expert_out;           // [N * M * X, D]

  // The exchange with other ranks; absent where N = 1. Partial sums are BF16 where N = 8, else FP32.
  Matrix<bf16> gathered_x;            // [N * M, D] rows of all ranks
  int32_t* gathered_ids = nullptr;    // [N * M, X]
  float* gathered_weights = nullptr;  // [N * M, X]
  Matrix<float> partials_out;         // [N * M, D] this rank's experts' part of every row
  Matrix<float> partials_in;          // [N, M, D] every rank's part of this rank's rows
  Matrix<bf16> partials_out_bf16;
  Matrix<bf16> partials_in_bf16;

  // MTP.
  Matrix<float> embedded;  // [R, D]
  Matrix<bf16> mtp_input;  // [R, 2 D]: enorm(embedding) | hnorm(previous output)
};

absl::StatusOr<Activations> AllocateActivations(Device& device, const ModelConfig& config, int row_capacity,
                                                int context_capacity, int ranks);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_ACTIVATIONS_H_
