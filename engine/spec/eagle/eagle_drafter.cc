#include "engine/spec/eagle/eagle_drafter.h"

#include "engine/spec/draft_picker.h"

namespace foredraft {

void EagleDrafter::FirstDraft(const Rank& rank, const DraftInput& input, bool make_draft) const {
  Draft(rank, input, make_draft ? 1 : 0);
}

void EagleDrafter::Draft(const Rank& rank, const DraftInput& input, int draft_count) const {
  const StepBuffers& b = rank.buffers;
  const Ops& ops = rank.ops();
  Stream& stream = *rank.stream;
  const int rows = input.bucket * (input.draft_len + 1);
  const Matrix<float> last_output = b.last_output.first_rows(input.bucket);

  // Positions p+1..p+n with true outputs; draft 1 comes from the last of them.
  ops.emitted_rows(stream, {.ids = b.module.ids,
                            .row_slots = b.module.slots,
                            .positions = b.module.positions,
                            .last_row = b.last_row,
                            .outputs = input.outputs,
                            .bucket = input.bucket,
                            .draft_len = input.draft_len,
                            .level = 1});
  rank.model->RunModule(stream, 0,
                        {.index = b.module.index(rows),
                         .ids = b.module.ids,
                         .previous = input.target_output,
                         .rank_rows = input.rank_rows},
                        rank.cache, b.module_output.first_rows(rows));
  if (draft_count == 0) return;
  ops.copy_rows(stream, {.out = last_output,
                         .x = b.module_output.first_rows(rows),
                         .x_index = b.last_row,
                         .rows = input.bucket});
  PickDraft(rank, input, 1, /*level=*/1);

  // The module recycled: one row per sequence, its own output as the hidden.
  for (int draft = 2; draft <= draft_count; ++draft) {
    const Matrix<float> output = b.module_output.first_rows(input.bucket);
    ops.next_draft_rows(stream, {.ids = b.module.ids,
                                 .row_slots = b.module.slots,
                                 .positions = b.module.positions,
                                 .draft_ids = b.draft_ids,
                                 .outputs = input.outputs,
                                 .bucket = input.bucket,
                                 .draft_index = draft - 1});
    rank.model->RunModule(stream, 0,
                          {.index = b.module.index(input.bucket),
                           .ids = b.module.ids,
                           .previous = last_output,
                           .rank_rows = input.rank_rows},
                          rank.cache, output);
    ops.copy_rows(stream, {.out = last_output, .x = output, .rows = input.bucket});
    PickDraft(rank, input, draft, /*level=*/1);
  }
}

}  // namespace foredraft
