#ifndef FOREDRAFT_ENGINE_MODEL_ACTIVATIONS_H_
#define FOREDRAFT_ENGINE_MODEL_ACTIVATIONS_H_

// Device memory between the ops of one forward, allocated once and shared by all layers. Nothing in it
// outlives a forward. Owner: DeepseekV3.

#include <algorithm>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/model/linear.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// Rows of each rank that a mixture of experts expands at once, which bounds the memory of long prefills. At
// most 2048 of all ranks together, because all of them may choose one rank's experts.
constexpr int MoeRowsAtOnce(int ranks) { return std::min(512, 2048 / ranks); }

// Positions whose keys and values a prefill expands at once, which bounds the memory of long contexts.
inline constexpr int kPrefillWindow = 4096;

// The size of the largest forward.
struct ForwardCapacity {
  int rows = 0;                 // in either form
  int decode_rows = 0;          // in the decode form
  int positions = 0;            // of a prefill's context
  int window = kPrefillWindow;  // a multiple of kPrefillWindowUnit; changes no bit
};

// R = capacity.rows, S = capacity.decode_rows, C = min(capacity.positions, capacity.window), N = ranks, M =
// min(R, MoeRowsAtOnce(N)), X = experts per token.
struct Activations {
  Matrix<float> hidden;  // [R, D] residual stream
  InputRows normed;      // [R, D] input of the next projection

  // Attention.
  Matrix<float> qkv_a;     // [R, q_lora + latent + rope]
  InputRows q_a;           // [R, q_lora]
  Matrix<float> q;         // [R, H * qk_head_dim]
  Matrix<bf16> q_roped;    // [R, H * qk_head_dim]
  Matrix<bf16> q_lat;      // [S, H * latent] decode form
  Matrix<bf16> o_lat;      // [S, H * latent] decode form
  Matrix<bf16> attention;  // [R, H * v]
  Matrix<bf16> latent;     // [C, latent] prefill form
  Matrix<bf16> k_pe;       // [C, rope] prefill form
  Matrix<bf16> kv;         // [C, H * (nope + v)] prefill form
  // [R, H * (v + kPrefillStateExtra)] prefill form, between windows; absent where one window has all
  // positions. In the memory of gate_up, which is used between two attentions only.
  Matrix<float> softmax_state;

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

absl::StatusOr<Activations> AllocateActivations(Device& device, const ModelConfig& config,
                                                const ForwardCapacity& capacity, int ranks);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_ACTIVATIONS_H_
