#pragma once

// The weights that the common recipes of engine/model take, on a device, fused and packed the way the recipes
// use them. Views only: the memory belongs to the device and lives as long as it does. Written once by
// LoadWeights, then read-only. A family's folder has the structs of its layers.
//
// Letters in shapes: hidden D, heads H, vocabulary V, experts E, experts per token X, dense width I, expert
// width M, shared width S. A rank of a tensor group has its part of H, V, I and S (ModelShard).

#include "kernels/tensor.h"

namespace foredraft {

// kv_b is one BF16 matrix (dequantised and rounded once if the checkpoint has FP8) in two forms: whole for
// the prefill form, split per head for the absorbed decode form. Both forms have the same values.
struct MlaWeights {
  // q_a_proj stacked on kv_a_proj_with_mqa. If q_lora_rank is null, q_proj takes the place of q_a_proj, and
  // q_b is absent.
  PackedWeight qkv_a;                     // [q_lora_rank (or H * qk_head_dim) + kv_lora_rank + rope, D]
  const float* qkv_a_bias = nullptr;      // [qkv_a.n] or null
  const float* q_a_layernorm = nullptr;   // [q_lora_rank]; null if q_lora_rank is null
  const float* kv_a_layernorm = nullptr;  // [kv_lora_rank]
  PackedWeight q_b;                       // [H * qk_head_dim, q_lora_rank] or absent
  PackedWeight kv_b;                      // [H * (nope + v), kv_lora_rank] bf16
  PackedWeights w_uk;                     // [H], each [kv_lora_rank, nope] bf16: q_nope to q_lat
  PackedWeights w_uv;                     // [H], each [v, kv_lora_rank] bf16: o_lat to the head's output
  PackedWeight o_proj;                    // [D, H * v], or whole canonical segments of these inputs
  int32_t o_first_column = 0;             // the first input's column in the outputs of the rank's heads
  const float* o_proj_bias = nullptr;     // [D] or null
};

// An MLP that computes down(activation(gate x, up x)); gate_up has gate above up.
struct DenseMlpWeights {
  PackedWeight gate_up;  // [2 I, D]
  PackedWeight down;     // [D, I]
};

struct MoeWeights {
  PackedWeight router;          // [E, D]
  const float* bias = nullptr;  // [E], added to the scores only for choosing experts; null with expert_table
  const int32_t* expert_table =
      nullptr;                   // [V, X]: experts by token id, of DeepSeek-V4's hash layers; or null
  PackedWeights expert_gate_up;  // [this rank's experts], each [2 M, D]
  PackedWeights expert_down;     // [this rank's experts], each [D, M]
  InputScales gate_up_inputs;    // of expert_gate_up; absent: inputs stay BF16
  InputScales down_inputs;
  DenseMlpWeights shared;  // width S; absent where the model has no shared expert
};

}  // namespace foredraft
