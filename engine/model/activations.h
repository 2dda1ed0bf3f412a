#pragma once

// Device memory between the ops of one forward, allocated once and shared by all layers. Nothing in it
// outlives a forward. Owner: DeepseekV3.

#include "absl/status/statusor.h"
#include "engine/model/expert_activations.h"
#include "engine/model/linear.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// Positions whose keys and values a prefill expands at once, which bounds the memory of long contexts.
inline constexpr int kPrefillWindow = 4096;

// The size of the largest forward.
struct ForwardCapacity {
  int rows = 0;                 // in either form
  int decode_rows = 0;          // in the decode form
  int positions = 0;            // of a prefill's context
  int window = kPrefillWindow;  // a multiple of kPrefillWindowUnit; changes no bit
};

// R = capacity.rows, S = capacity.decode_rows, C = min(capacity.positions, capacity.window).
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
  Matrix<float> projected;  // [R, D] what a layer's half adds to the residual stream
  Matrix<float> gate_up;    // [R, 2 I]
  InputRows activated;      // [R, I]
  ExpertActivations experts;

  // MTP.
  Matrix<float> embedded;  // [R, D]
  Matrix<bf16> mtp_input;  // [R, 2 D]: enorm(embedding) | hnorm(previous output)
};

absl::StatusOr<Activations> AllocateActivations(Device& device, const ModelConfig& config,
                                                const ForwardCapacity& capacity, int ranks);

}  // namespace foredraft
