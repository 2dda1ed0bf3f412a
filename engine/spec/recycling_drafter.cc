#include "engine/spec/recycling_drafter.h"

#include <algorithm>

namespace foredraft {

Matrix<const float> RecyclingDrafter::TargetRows(const StepContext& step, GemmForm /*form*/, int rows) const {
  return step.buffers.target_output.first_rows(rows);
}

Matrix<const float> RecyclingDrafter::EndedRows(const StepContext& /*step*/, const DraftInput& input) const {
  return input.target_output;
}

void RecyclingDrafter::Prompt(const StepContext& step, SlotState& /*slots*/, const ChunkRows& chunks,
                              const RankRows& rank_rows) const {
  m_.Prompt(step, TargetRows(step, GemmForm::kPrefill, chunks.count()), chunks, rank_rows);
}

void RecyclingDrafter::FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const {
  DraftFromEmitted(step, input, EndedRows(step, input), std::min(draft_count, 1));
}

void RecyclingDrafter::Draft(const StepContext& step, const DraftInput& input, int draft_count) const {
  const Matrix<const float> target_rows = TargetRows(step, GemmForm::kDecode, input.target_output.rows);
  m_.KeepTargetBoundaries(step, target_rows);
  DraftFromEmitted(step, input, target_rows, draft_count);
}

void RecyclingDrafter::DraftFromEmitted(const StepContext& step, const DraftInput& input,
                                        Matrix<const float> target_rows, int draft_count) const {
  const Ops& ops = step.ops();
  Stream& stream = step.stream;
  const int rows = input.bucket * (input.draft_len + 1);
  const Matrix<float> last_output = m_.last_output.first_rows(input.bucket);

  // Rows at positions p+1..p+n take the target's outputs; draft 1 comes from the last of them.
  ops.emitted_rows(stream, {.ids = m_.rows.ids,
                            .row_slots = m_.rows.slots,
                            .positions = m_.rows.positions,
                            .last_row = m_.last_row,
                            .outputs = input.outputs,
                            .bucket = input.bucket,
                            .draft_len = input.draft_len,
                            .level = 1});
  m_.Run(step, input, /*level=*/1, target_rows, m_.output.first_rows(rows));
  if (draft_count == 0) return;
  ops.copy_rows(
      stream,
      {.out = last_output, .x = m_.output.first_rows(rows), .x_index = m_.last_row, .rows = input.bucket});
  m_.PickDraft(step, input, 1, /*level=*/1);

  // Recycles the module: one row per sequence, with the module's own output as its hidden input.
  for (int draft = 2; draft <= draft_count; ++draft) {
    const Matrix<float> output = m_.output.first_rows(input.bucket);
    ops.next_draft_rows(stream, {.ids = m_.rows.ids,
                                 .row_slots = m_.rows.slots,
                                 .positions = m_.rows.positions,
                                 .draft_ids = m_.picker.draft_ids(),
                                 .outputs = input.outputs,
                                 .bucket = input.bucket,
                                 .draft_index = draft - 1});
    m_.Recycle(step, input, last_output, output);
    ops.copy_rows(stream, {.out = last_output, .x = output, .rows = input.bucket});
    m_.PickDraft(step, input, draft, /*level=*/1);
  }
}

}  // namespace foredraft
