#pragma once

// The rows of one forward, and the form in which attention takes them.

#include <functional>
#include <span>

#include "engine/comm/rank_rows.h"
#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace foredraft {

// Adjacent rows of one sequence's prompt chunk.
struct PrefillSpan {
  int32_t slot = 0;
  int32_t first_row = 0;
  int32_t row_count = 0;
  int32_t first_position = 0;
};

struct Batch {
  RowIndex index;
  const int32_t* ids = nullptr;  // [rows], device
  // [rows, Model::output_width]: the output of the level below at each row's position - 1. Absent for the
  // target.
  Matrix<const float> previous;
  // [rows], device. Where the model shares lists of positions (docs/deepseek-v3.md section 9), row i of a
  // recycled module attends the list of row list_rows[i] of the level's last forward that was not recycled.
  // Null: rows select positions themselves.
  const int32_t* list_rows = nullptr;
  // Prompt rows, in the prefill form. Empty: generated rows, in the absorbed decode form. The two forms round
  // differently, so a row keeps the form it was written in (docs/invariants.md, two-forms).
  std::span<const PrefillSpan> spans;
  // How many rows every rank has in this forward. Null: all ranks have as many as this one, as in a decode
  // step.
  const RankRows* rank_rows = nullptr;

  // Returns true once the outputs are no longer wanted: the forward may then end between two layers. Null:
  // they stay wanted. Set only for a rank that is alone, because other ranks would wait for its part.
  const std::function<bool()>* abandoned = nullptr;

  bool is_abandoned() const { return abandoned != nullptr && (*abandoned)(); }
  bool prefill_form() const { return !spans.empty(); }
  GemmForm gemm_form() const { return prefill_form() ? GemmForm::kPrefill : GemmForm::kDecode; }
};

}  // namespace foredraft
