#include "engine/spec/vanilla/vanilla_drafter.h"

#include "engine/spec/draft_picker.h"

namespace foredraft {
namespace {

// Fills buffers.module and previous with module 1's window, and updates the recent rows.
void FirstWindow(const Rank& rank, const DraftInput& input) {
  const StepBuffers& b = rank.buffers;
  const Ops& ops = rank.ops();
  Stream& stream = *rank.stream;
  const int max_draft_len = rank.slots.recent_len();
  const int rows = input.bucket * (max_draft_len + 1);
  const Matrix<float> previous = b.previous.first_rows(rows);
  const Matrix<float> recent = rank.slots.recent_hiddens();
  ops.recent_rows(stream, {.ids = b.module.ids,
                           .row_slots = b.module.slots,
                           .positions = b.module.positions,
                           .recent_index = b.recent_index,
                           .target_index = b.target_index,
                           .save_index = b.save_index,
                           .recent_ids = rank.slots.recent_ids(),
                           .outputs = input.outputs,
                           .bucket = input.bucket,
                           .draft_len = input.draft_len,
                           .max_draft_len = max_draft_len});
  ops.copy_rows(stream, {.out = previous, .x = recent, .x_index = b.recent_index, .rows = rows});
  ops.copy_rows(stream, {.out = previous, .x = input.target_output, .x_index = b.target_index, .rows = rows});
  ops.copy_rows(stream, {.out = recent, .x = previous, .out_index = b.save_index, .rows = rows});
}

}  // namespace

// Row m of every module: the first token, and the output of the level below at m - 1, which the prefill left
// as the slot's boundary.
void VanillaDrafter::FirstDraft(const Rank& rank, const DraftInput& input, bool make_draft) const {
  const StepBuffers& b = rank.buffers;
  const Ops& ops = rank.ops();
  Stream& stream = *rank.stream;
  const int rows = input.bucket;
  const Matrix<float> output = b.module_output.first_rows(rows);
  const Matrix<float> previous = b.previous.first_rows(rows);
  for (int level = 1; level <= rank.slots.level_count(); ++level) {
    const Matrix<float> boundaries = rank.slots.boundaries(level - 1);
    ops.emitted_rows(stream, {.ids = b.module.ids,
                              .row_slots = b.module.slots,
                              .positions = b.module.positions,
                              .last_row = b.last_row,
                              .outputs = input.outputs,
                              .bucket = rows,
                              .draft_len = 0,
                              .level = level});
    ops.copy_rows(stream, {.out = previous, .x = boundaries, .x_index = b.module.slots, .rows = rows});
    rank.model->RunModule(stream, level - 1,
                          {.index = b.module.index(rows),
                           .ids = b.module.ids,
                           .previous = previous,
                           .rank_rows = input.rank_rows},
                          rank.cache, output);
    if (level == 1 && make_draft) {
      ops.copy_rows(stream, {.out = b.last_output, .x = output, .rows = rows});
      PickDraft(rank, input, 1, level);
    }
  }
  ops.append_recent(stream, {.recent_ids = rank.slots.recent_ids(),
                             .outputs = input.outputs,
                             .count = rows,
                             .max_draft_len = rank.slots.recent_len()});
}

void VanillaDrafter::Draft(const Rank& rank, const DraftInput& input, int draft_count) const {
  const StepBuffers& b = rank.buffers;
  const Ops& ops = rank.ops();
  Stream& stream = *rank.stream;
  const int window = rank.slots.recent_len() + 1;
  const int rows = input.bucket * window;
  FirstWindow(rank, input);
  Matrix<float> previous = b.previous.first_rows(rows);
  for (int level = 1; level <= rank.slots.level_count(); ++level) {
    const Matrix<float> output = (level % 2 == 0 ? b.even_output : b.module_output).first_rows(rows);
    if (level > 1) {
      ops.recent_level_rows(stream, {.ids = b.module.ids,
                                     .row_slots = b.module.slots,
                                     .positions = b.module.positions,
                                     .recent_ids = rank.slots.recent_ids(),
                                     .outputs = input.outputs,
                                     .slots = rank.slots.arrays(),
                                     .bucket = input.bucket,
                                     .max_draft_len = window - 1,
                                     .level = level});
    }
    rank.model->RunModule(stream, level - 1,
                          {.index = b.module.index(rows), .ids = b.module.ids, .previous = previous},
                          rank.cache, output);
    if (level <= draft_count) {
      const Matrix<float> last_rows = {output.row(window - 1), input.bucket, output.cols,
                                       window * output.stride};
      ops.copy_rows(stream, {.out = b.last_output, .x = last_rows, .rows = input.bucket});
      PickDraft(rank, input, level, level);
    }
    previous = output;  // a window's outputs are the next one's hiddens, unshifted
  }
}

}  // namespace foredraft
