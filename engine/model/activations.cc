#include "engine/model/activations.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

template <class T>
absl::Status AllocateMatrix(Device& device, int rows, int cols, Matrix<T>& out) {
  ASSIGN_OR_RETURN(T* const data, device.AllocateArray<T>(static_cast<size_t>(rows) * cols));
  out = Dense(data, rows, cols);
  return absl::OkStatus();
}

absl::Status AllocateAttention(Device& device, const ModelConfig& config, const ForwardCapacity& capacity,
                               Activations& a) {
  CHECK_EQ(capacity.window % kPrefillWindowUnit, 0);
  const int rows = capacity.rows;
  const int context = std::min(capacity.positions, capacity.window);
  const int heads = config.num_attention_heads;
  const int latent = config.kv_lora_rank;
  const int q_width = heads * config.qk_head_dim();
  const int q_a_width = config.q_lora_rank > 0 ? config.q_lora_rank : q_width;
  RETURN_IF_ERROR(AllocateMatrix(device, rows, q_a_width + latent + config.qk_rope_head_dim, a.qkv_a));
  if (config.q_lora_rank > 0) {
    RETURN_IF_ERROR(AllocateInputRows(device, rows, config.q_lora_rank, a.q_a));
    RETURN_IF_ERROR(AllocateMatrix(device, rows, q_width, a.q));
  }
  RETURN_IF_ERROR(AllocateMatrix(device, rows, q_width, a.q_roped));
  RETURN_IF_ERROR(AllocateMatrix(device, capacity.decode_rows, heads * latent, a.q_lat));
  RETURN_IF_ERROR(AllocateMatrix(device, capacity.decode_rows, heads * latent, a.o_lat));
  RETURN_IF_ERROR(AllocateMatrix(device, rows, heads * config.v_head_dim, a.attention));
  RETURN_IF_ERROR(AllocateMatrix(device, context, latent, a.latent));
  RETURN_IF_ERROR(AllocateMatrix(device, context, config.qk_rope_head_dim, a.k_pe));
  return AllocateMatrix(device, context, heads * (config.qk_nope_head_dim + config.v_head_dim), a.kv);
}

// gate_up, and softmax_state in the same memory where the context may exceed a window.
absl::Status AllocateGateUp(Device& device, const ModelConfig& config, const ForwardCapacity& capacity,
                            int width, Activations& a) {
  const int state_width = config.num_attention_heads * (config.v_head_dim + kPrefillStateExtra);
  const bool windows = capacity.positions > capacity.window;
  const int cols = windows ? std::max(width, state_width) : width;
  Matrix<float> memory;
  RETURN_IF_ERROR(AllocateMatrix(device, capacity.rows, cols, memory));
  a.gate_up = Dense(memory.data, capacity.rows, width);
  if (windows) a.softmax_state = Dense(memory.data, capacity.rows, state_width);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Activations> AllocateActivations(Device& device, const ModelConfig& config,
                                                const ForwardCapacity& capacity, int ranks) {
  Activations a;
  const int rows = capacity.rows;
  RETURN_IF_ERROR(AllocateMatrix(device, rows, config.hidden_size, a.hidden));
  RETURN_IF_ERROR(AllocateInputRows(device, rows, config.hidden_size, a.normed));
  RETURN_IF_ERROR(AllocateMatrix(device, rows, config.hidden_size, a.projected));
  RETURN_IF_ERROR(AllocateAttention(device, config, capacity, a));
  RETURN_IF_ERROR(AllocateExperts(device, config, rows, ranks, a.experts));
  const bool has_dense = config.first_k_dense_replace > 0 || config.n_routed_experts == 0 ||
                         config.moe_layer_freq > 1 || config.dense_mtp;
  const int dense = has_dense ? config.intermediate_size : 0;
  const int widest = std::max(dense, config.n_shared_experts * config.moe_intermediate_size);
  RETURN_IF_ERROR(AllocateGateUp(device, config, capacity, 2 * widest, a));
  RETURN_IF_ERROR(AllocateInputRows(device, rows, widest, a.activated));
  RETURN_IF_ERROR(AllocateMatrix(device, rows, config.hidden_size, a.embedded));
  RETURN_IF_ERROR(AllocateMatrix(device, rows, 2 * config.hidden_size, a.mtp_input));
  return a;
}

}  // namespace foredraft
