#include "engine/spec/draft_picker.h"

#include "base/status_macros.h"

namespace foredraft {

absl::StatusOr<DraftPicker> DraftPicker::Create(Device& device, int bucket) {
  DraftPicker picker;
  RETURN_IF_ERROR(AllocateBuffer(device, bucket, picker.rows_));
  RETURN_IF_ERROR(AllocateBuffer(device, bucket, picker.draft_ids_));
  return picker;
}

void DraftPicker::Pick(const Rank& rank, const DraftInput& input, int draft_index,
                       Matrix<const float> logits) const {
  Stream& stream = *rank.stream;
  // Sampling takes the position before the token it chooses.
  rank.ops().next_draft_rows(stream, {.ids = rows_.ids,
                                      .row_slots = rows_.slots,
                                      .positions = rows_.positions,
                                      .draft_ids = draft_ids_,
                                      .outputs = input.outputs,
                                      .bucket = input.bucket,
                                      .draft_index = draft_index - 1});
  ChooseTokens(rank.ops(), stream, input.choice,
               {.out = draft_ids_,
                .logits = logits,
                .index = rows_.index(input.bucket),
                .ids = rows_.ids,
                .stored_drafts = draft_index - 1,
                .slots = rank.slots.arrays(),
                .scratch = rank.buffers.sample_scratch.data,
                .masks = rank.masks.of_unconstrained(),
                .token_count = rank.token_count});
  rank.ops().store_drafts(stream, {.draft_ids = draft_ids_,
                                   .outputs = input.outputs,
                                   .slots = rank.slots.arrays(),
                                   .bucket = input.bucket,
                                   .draft_index = draft_index});
}

}  // namespace foredraft
