#include "engine/spec/draft_picker.h"

namespace foredraft {

void PickDraft(const Rank& rank, const DraftInput& input, int draft_index, int level) {
  const StepBuffers& b = rank.buffers;
  Stream& stream = *rank.stream;
  const Matrix<float> logits = b.logits.first_rows(input.bucket);
  rank.model->Logits(stream, level, b.last_output.first_rows(input.bucket), logits);
  // Sampling takes the position before the token it chooses.
  rank.ops().next_draft_rows(stream, {.ids = b.pick.ids,
                                      .row_slots = b.pick.slots,
                                      .positions = b.pick.positions,
                                      .draft_ids = b.draft_ids,
                                      .outputs = input.outputs,
                                      .bucket = input.bucket,
                                      .draft_index = draft_index - 1});
  ChooseTokens(rank.ops(), stream, input.choice,
               {.out = b.draft_ids,
                .logits = logits,
                .index = b.pick.index(input.bucket),
                .ids = b.pick.ids,
                .stored_drafts = draft_index - 1,
                .slots = rank.slots.arrays(),
                .scratch = b.sample_scratch.data});
  rank.ops().store_drafts(stream, {.draft_ids = b.draft_ids,
                                   .outputs = input.outputs,
                                   .slots = rank.slots.arrays(),
                                   .bucket = input.bucket,
                                   .draft_index = draft_index});
}

}  // namespace foredraft
