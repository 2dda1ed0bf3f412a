#pragma once

// Device memory between the ops of a mixture of experts and of its exchange with other ranks. Of any model.

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"
#include "engine/model/linear.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

// Rows of each rank that a mixture of experts expands at once, which bounds the memory of long prefills. At
// most 2048 of all ranks together, because all of them may choose one rank's experts.
constexpr int MoeRowsAtOnce(int ranks) { return std::min(512, 2048 / ranks); }

// N = ranks, M = min(rows of the largest forward, MoeRowsAtOnce(N)), X = experts per token.
struct ExpertActivations {
  Matrix<float> router_logits;        // [M, E]
  int32_t* expert_ids = nullptr;      // [M, X]
  float* expert_weights = nullptr;    // [M, X]
  int32_t* expert_offsets = nullptr;  // [E + 1]
  int32_t* grouped_rows = nullptr;    // [N * M * X]
  int32_t* grouped_index = nullptr;   // [N * M, X]
  Matrix<float> gate_up;              // [N * M * X, 2 I_e]
  InputRows activated;                // [N * M * X, I_e]
  Matrix<float> out;                  // [N * M * X, D]

  // The exchange with other ranks; absent where N = 1. Partial sums are BF16 where N = 8, else FP32.
  Matrix<bf16> gathered_x;            // [N * M, D] rows of all ranks
  int32_t* gathered_ids = nullptr;    // [N * M, X]
  float* gathered_weights = nullptr;  // [N * M, X]
  Matrix<float> partials_out;         // [N * M, D] this rank's experts' part of every row
  Matrix<float> partials_in;          // [N, M, D] every rank's part of this rank's rows
  Matrix<bf16> partials_out_bf16;
  Matrix<bf16> partials_in_bf16;
};

// For forwards of up to `rows` rows.
absl::Status AllocateExperts(Device& device, const ModelConfig& config, int rows, int ranks,
                             ExpertActivations& a);

}  // namespace foredraft
