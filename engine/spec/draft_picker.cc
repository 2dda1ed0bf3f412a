#include "engine/spec/draft_picker.h"

namespace foredraft {

void PickDraft(const Ops& ops, Stream& stream, const DeepseekV3& model, const SlotState& slots,
               const StepBuffers& b, const DraftInput& input, int draft_index) {
  const Matrix<float> logits = b.logits.first_rows(input.places);
  model.Logits(stream, b.last_output.first_rows(input.places), logits);
  // Sampling takes the position before the token it chooses.
  ops.next_draft_rows(stream, {.ids = b.pick.ids,
                               .row_slots = b.pick.slots,
                               .positions = b.pick.positions,
                               .draft_ids = b.draft_ids,
                               .outputs = input.outputs,
                               .bucket = input.places,
                               .draft_index = draft_index - 1});
  ChooseTokens(ops, stream, input.choice,
               {.out = b.draft_ids,
                .logits = logits,
                .index = b.pick.index(input.places),
                .ids = b.pick.ids,
                .stored_drafts = draft_index - 1,
                .slots = slots.arrays(),
                .scratch = b.sample_scratch.data});
  ops.store_drafts(stream, {.draft_ids = b.draft_ids,
                            .outputs = input.outputs,
                            .slots = slots.arrays(),
                            .bucket = input.places,
                            .draft_index = draft_index});
}

}  // namespace foredraft
