#include "engine/spec/vanilla_drafter.h"

#include <utility>

#include "engine/spec/draft_picker.h"

namespace foredraft {

// Row m of every module: the first token, and the output of the level below at m - 1, which the prefill left
// as the slot's boundary.
void VanillaDrafter::FirstDraft(Stream& stream, const DraftInput& input, bool make_draft) const {
  const int places = input.places;
  const Matrix<float> output = b_.module_output.first_rows(places);
  const Matrix<float> previous = b_.previous.first_rows(places);
  for (int level = 1; level <= slots_.level_count(); ++level) {
    ops_.eagle_rows(stream, {.ids = b_.module.ids,
                             .row_slots = b_.module.slots,
                             .positions = b_.module.positions,
                             .last_row = b_.last_row,
                             .outputs = input.outputs,
                             .bucket = places,
                             .draft_len = 0,
                             .level = level});
    ops_.copy_rows(
        stream,
        {.out = previous, .x = slots_.boundaries(level - 1), .x_index = b_.module.slots, .rows = places});
    model_.ForwardMtp(
        stream, level - 1,
        {.index = b_.module.index(places), .ids = b_.module.ids, .rank_rows = input.rank_places}, cache_,
        previous, output);
    if (level == 1 && make_draft) {
      ops_.copy_rows(stream, {.out = b_.last_output, .x = output, .rows = places});
      PickDraft(ops_, stream, model_, slots_, b_, input, 1);
    }
  }
  ops_.append_recent(stream, {.recent_ids = slots_.recent_ids(),
                              .outputs = input.outputs,
                              .count = places,
                              .max_draft_len = slots_.recent_len()});
}

void VanillaDrafter::FirstWindow(Stream& stream, const DraftInput& input) const {
  const int max_draft_len = slots_.recent_len();
  const int rows = input.places * (max_draft_len + 1);
  const Matrix<float> previous = b_.previous.first_rows(rows);
  ops_.vanilla_rows(stream, {.ids = b_.module.ids,
                             .row_slots = b_.module.slots,
                             .positions = b_.module.positions,
                             .recent_index = b_.gather_index,
                             .target_index = b_.boundary_index,
                             .save_index = b_.save_index,
                             .recent_ids = slots_.recent_ids(),
                             .outputs = input.outputs,
                             .bucket = input.places,
                             .draft_len = input.verified_len,
                             .max_draft_len = max_draft_len});
  ops_.copy_rows(stream,
                 {.out = previous, .x = slots_.recent_hiddens(), .x_index = b_.gather_index, .rows = rows});
  ops_.copy_rows(stream,
                 {.out = previous, .x = input.target_output, .x_index = b_.boundary_index, .rows = rows});
  ops_.copy_rows(stream,
                 {.out = slots_.recent_hiddens(), .x = previous, .out_index = b_.save_index, .rows = rows});
}

void VanillaDrafter::Draft(Stream& stream, const DraftInput& input, int draft_count) const {
  const int window = slots_.recent_len() + 1;
  const int rows = input.places * window;
  Matrix<float> previous = b_.previous.first_rows(rows);
  Matrix<float> output = b_.module_output.first_rows(rows);
  FirstWindow(stream, input);
  for (int level = 1; level <= slots_.level_count(); ++level) {
    if (level > 1) {
      std::swap(previous, output);  // a window's outputs are the next one's hiddens, unshifted
      ops_.vanilla_level_rows(stream, {.ids = b_.module.ids,
                                       .row_slots = b_.module.slots,
                                       .positions = b_.module.positions,
                                       .recent_ids = slots_.recent_ids(),
                                       .outputs = input.outputs,
                                       .slots = slots_.arrays(),
                                       .bucket = input.places,
                                       .max_draft_len = window - 1,
                                       .level = level});
    }
    model_.ForwardMtp(stream, level - 1, {.index = b_.module.index(rows), .ids = b_.module.ids}, cache_,
                      previous, output);
    if (level > draft_count) continue;
    const Matrix<float> last_rows = {output.row(window - 1), input.places, output.cols,
                                     window * output.stride};
    ops_.copy_rows(stream, {.out = b_.last_output, .x = last_rows, .rows = input.places});
    PickDraft(ops_, stream, model_, slots_, b_, input, level);
  }
}

}  // namespace foredraft
