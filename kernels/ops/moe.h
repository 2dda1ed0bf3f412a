#pragma once

// Parameters of the ops of a mixture of experts; its products are grouped_gemm (kernels/ops/gemm.h).
// kernels/ops.h has the rules and the letters in shapes.

#include <cstdint>

#include "kernels/ops/dense.h"
#include "kernels/tensor.h"

namespace foredraft {

// Group-limited sigmoid routing (docs/deepseek-v3.md 3.4). Ties: the lower index wins. Expert ids of a row
// come in ascending order. Idle rows get expert -1.
struct RouteExpertsParams {
  int32_t* expert_ids;         // [R, top_k]
  float* expert_weights;       // [R, top_k]
  Matrix<const float> logits;  // [R, E]
  const float* bias;           // [E]: counts for the choice, not for the weights
  RowIndex index;
  int32_t n_group;
  int32_t topk_group;
  int32_t top_k;
  int32_t norm_topk_prob;  // 1: weights divided by their sum + 1e-20
  float routed_scaling_factor;
};

// Scores sqrt(softplus(logit)). The experts are the top_k by score + bias (ties: the lower index) or, with
// expert_table, the token's experts in the table. A weight is the expert's score, divided by the sum of the
// chosen scores + 1e-20, times the factor. Ids of a row come in ascending order. Idle rows get expert -1.
struct RouteSoftplusParams {
  int32_t* expert_ids;          // [R, top_k]
  float* expert_weights;        // [R, top_k]
  Matrix<const float> logits;   // [R, E]
  const float* bias;            // [E]; not read with expert_table
  const int32_t* expert_table;  // [V, top_k] or null
  const int32_t* ids;           // [R]: tokens; read with expert_table only; outside [0, V): token 0
  RowIndex index;
  int32_t vocab_size;
  int32_t top_k;
  float routed_scaling_factor;
};

// Divides the rows into parts, because this rank's experts, [first_expert, first_expert + expert_count), may
// be chosen in more pairs than there is room for. Part i has rows [borders[i], borders[i + 1]); borders[i] is
// the first row before which the experts have at least i * part_pairs pairs, or R. So each row is in one
// part, and a part has fewer than part_pairs + top_k pairs.
struct PartRowsParams {
  int32_t* borders;           // [part_count + 1]
  const int32_t* expert_ids;  // [R, top_k], -1 = none
  int32_t rows;
  int32_t top_k;
  int32_t expert_count;
  int32_t first_expert;
  int32_t part_pairs;  // at least top_k
  int32_t part_count;  // part_count * part_pairs >= R * top_k
};

// Sorts the (row, choice) pairs by expert, rows ascending within one expert. Takes only the pairs of this
// rank's experts: [first_expert, first_expert + expert_count).
struct GroupRowsParams {
  int32_t* expert_offsets;  // [expert_count + 1]: grouped rows of this rank's expert e are
                            // [offsets[e], offsets[e + 1])
  int32_t* grouped_rows;    // [pairs taken]: the source row of each grouped row
  int32_t*
      grouped_index;  // [R, top_k]: grouped row of choice j of row r; -1: idle row or another rank's expert
  const int32_t* expert_ids;  // [R, top_k], -1 = none
  int32_t rows;
  int32_t top_k;
  int32_t expert_count;
  int32_t first_expert;                // 0 with a single rank
  const int32_t* row_range = nullptr;  // only rows [row_range[0], row_range[1]); null: all. grouped_index of
                                       // other rows is not written
};

// Rounds rows to NVFP4 (kernels/rules/nvfp4_rows.h): to values in BF16, or to codes. Columns are a multiple
// of 16. Grouped rows are rounded by their experts' scales, others by input_scales[0].
struct RoundNvfp4Params {
  Matrix<bf16> out;                         // [R, D]; or absent
  Nvfp4Rows out_codes;                      // [R, D]; exactly one of the two is present
  Matrix<const bf16> x;                     // [*, D]; may be `out` where x_rows is null
  const int32_t* x_rows = nullptr;          // [R]: the source of each row; null: r
  const float* input_scales = nullptr;      // [expert_count], or [1]
  const int32_t* expert_offsets = nullptr;  // [expert_count + 1], as of group_rows: rows from
                                            // offsets[expert_count] on are not written; or null
  int32_t expert_count = 1;
};

// out = the values of x.
struct WidenNvfp4Params {
  Matrix<bf16> out;  // [R, D]
  Nvfp4Rows x;       // [R, D]
};

// hidden[r] += shared[r] + sum of weighted expert outputs, in the canonical order of docs/invariants.md
// section 3: 8 slices of experts [gE/8, (g+1)E/8). Within a slice, sums are FP32 in ascending expert order,
// each product is rounded before it is added, and the sum is rounded to BF16 once. The slices are added in
// FP32 by the tree ((0+1)+(2+3))+((4+5)+(6+7)). Idle rows are unchanged.
struct CombineExpertsParams {
  Matrix<float> hidden;            // [R, D], updated
  Matrix<const float> expert_out;  // [R * top_k, D]
  Matrix<const float> shared;      // [R, D] or absent
  const int32_t* grouped_index;    // [R, top_k]
  const int32_t* expert_ids;       // [R, top_k]
  const float* expert_weights;     // [R, top_k]
  int32_t top_k;
  int32_t expert_count;
};

// combine_experts across ranks, in two steps (docs/invariants.md, expert-exchange). Step 1: each rank
// computes, for the rows of all ranks, the subtree over its own slices [first_slice, first_slice +
// slice_count). The outputs of idle rows are undefined, those of rows outside of row_range are not written.
struct ExpertPartialsParams {
  Matrix<float> out;               // [R, D] or absent
  Matrix<bf16> out_bf16;           // [R, D] or absent; only for a single slice, whose sum is a BF16 value
  Matrix<const float> expert_out;  // [grouped rows, D]
  const int32_t* grouped_index;    // [R, top_k], -1: not one of this rank's experts
  const int32_t* expert_ids;       // [R, top_k]
  const float* expert_weights;     // [R, top_k]
  int32_t top_k;
  int32_t expert_count;  // E, of all ranks
  int32_t first_slice;
  int32_t slice_count;                 // 1, 2, 4, 8
  const int32_t* row_range = nullptr;  // as in group_rows
};

// Step 2, on the rank that owns the row: hidden[r] += shared[r] + the partial values of all ranks, added by
// the rest of the tree. Idle rows are unchanged.
struct AddPartialsParams {
  Matrix<float> hidden;              // [R, D], updated
  Matrix<const float> partials;      // [ranks * R, D]: rank s's value of row r is row s * R + r; or absent
  Matrix<const bf16> partials_bf16;  // the same in BF16; exactly one of the two is present
  Matrix<const float> shared;        // [shared_parts * R, D], as TreeSumParams' parts; or absent
  const int32_t* expert_ids;         // [R, top_k]: -1 where the row is idle
  int32_t top_k;
  int32_t rank_count;        // 1, 2, 4, 8
  int32_t shared_parts = 1;  // 1, 2, 4, 8
};

// add_partials, then rms_norm of its rows, with the bits of the two ops.
struct AddPartialsNormParams {
  AddPartialsParams partials;
  RmsNormParams norm;  // x: partials.hidden; without a residual
};

}  // namespace foredraft
