#include "engine/spec/draft_picker.h"

#include "base/status_macros.h"

namespace foredraft {

absl::StatusOr<DraftPicker> DraftPicker::Create(Device& device, int bucket) {
  DraftPicker picker;
  RETURN_IF_ERROR(AllocateBuffer(device, bucket, picker.rows_));
  RETURN_IF_ERROR(AllocateBuffer(device, bucket, picker.draft_ids_));
  return picker;
}

void DraftPicker::Pick(const StepContext& step, const DraftInput& input, int draft_index,
                       Matrix<const float> logits) const {
  Stream& stream = step.stream;
  // Sampling is given the position before that of the token it chooses.
  step.ops().next_draft_rows(stream, {.ids = rows_.ids,
                                      .row_slots = rows_.slots,
                                      .positions = rows_.positions,
                                      .draft_ids = draft_ids_,
                                      .outputs = input.outputs,
                                      .bucket = input.bucket,
                                      .draft_index = draft_index - 1});
  SampleTokens(step.ops(), stream, input.sampling_mode,
               {.out = draft_ids_,
                .logits = logits,
                .index = rows_.index(input.bucket),
                .ids = rows_.ids,
                .stored_drafts = draft_index - 1,
                .slots = step.slots.arrays(),
                .scratch = step.buffers.sample_scratch.data,
                .masks = step.unconstrained_masks,
                .token_count = step.token_count});
  step.ops().store_drafts(stream, {.draft_ids = draft_ids_,
                                   .outputs = input.outputs,
                                   .slots = step.slots.arrays(),
                                   .bucket = input.bucket,
                                   .draft_index = draft_index});
}

}  // namespace foredraft
