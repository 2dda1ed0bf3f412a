#include "engine/spec/eagle_drafter.h"

#include "engine/spec/draft_picker.h"

namespace foredraft {

void EagleDrafter::FirstDraft(Stream& stream, const DraftInput& input, bool make_draft) const {
  Draft(stream, input, make_draft ? 1 : 0);
}

void EagleDrafter::Draft(Stream& stream, const DraftInput& input, int draft_count) const {
  const int rows = input.places * (input.verified_len + 1);
  const Matrix<float> last_output = b_.last_output.first_rows(input.places);

  // Positions p+1..p+n with true outputs; draft 1 comes from the last of them.
  ops_.eagle_rows(stream, {.ids = b_.module.ids,
                           .row_slots = b_.module.slots,
                           .positions = b_.module.positions,
                           .last_row = b_.last_row,
                           .outputs = input.outputs,
                           .bucket = input.places,
                           .draft_len = input.verified_len,
                           .level = 1});
  // A place has more than one row only in a decode step, where all ranks have as many.
  model_.ForwardMtp(stream, 0,
                    {.index = b_.module.index(rows), .ids = b_.module.ids, .rank_rows = input.rank_places},
                    cache_, input.target_output, b_.module_output.first_rows(rows));
  if (draft_count == 0) return;
  ops_.copy_rows(stream, {.out = last_output,
                          .x = b_.module_output.first_rows(rows),
                          .x_index = b_.last_row,
                          .rows = input.places});
  PickDraft(ops_, stream, model_, slots_, b_, input, 1);

  // The module recycled: one row per place, its own output as the hidden.
  for (int draft = 2; draft <= draft_count; ++draft) {
    const Matrix<float> output = b_.module_output.first_rows(input.places);
    ops_.next_draft_rows(stream, {.ids = b_.module.ids,
                                  .row_slots = b_.module.slots,
                                  .positions = b_.module.positions,
                                  .draft_ids = b_.draft_ids,
                                  .outputs = input.outputs,
                                  .bucket = input.places,
                                  .draft_index = draft - 1});
    model_.ForwardMtp(
        stream, 0,
        {.index = b_.module.index(input.places), .ids = b_.module.ids, .rank_rows = input.rank_places},
        cache_, last_output, output);
    ops_.copy_rows(stream, {.out = last_output, .x = output, .rows = input.places});
    PickDraft(ops_, stream, model_, slots_, b_, input, draft);
  }
}

}  // namespace foredraft
