#include "engine/spec/mtp_modules.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr char kBoundaries[] = "boundaries";

// The chunks' rows for `level`, which starts at position `level`: rows at lower positions are idle.
ChunkRows RowsOfLevel(const ChunkRows& chunks, int level) {
  ChunkRows rows = chunks;
  rows.spans.clear();
  for (PrefillSpan span : chunks.spans) {
    const int skipped = std::clamp(level - span.first_position, 0, span.row_count);
    std::fill_n(rows.slots.begin() + span.first_row, skipped, -1);
    span.first_row += skipped;
    span.first_position += skipped;
    span.row_count -= skipped;
    if (span.row_count > 0) rows.spans.push_back(span);
  }
  return rows;
}

// Sets m.previous to the output of `level` one position before each row: that of the row above, or, for a
// chunk's first row, the slot's boundary.
void GatherPrevious(const MtpModules& m, const StepContext& step, const ChunkRows& rows, int level,
                    Matrix<const float> output) {
  const Ops& ops = step.ops();
  std::vector<int32_t> index(rows.count());
  for (int row = 0; row < rows.count(); ++row) index[row] = row - 1;
  for (const PrefillSpan& span : rows.spans) index[span.first_row] = -1;
  Upload(step.device, step.stream, index, m.row_index);
  ops.copy_rows(step.stream, {.out = m.previous, .x = output, .x_index = m.row_index, .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    if (span.first_position == 0) continue;
    ops.copy_rows(step.stream, {.out = m.previous.row_range(span.first_row, 1),
                                .x = m.LevelOf(level, m.slot_boundaries).row_range(span.slot, 1),
                                .rows = 1});
  }
}

// Keeps the output of `level` at each chunk's last position for the next chunk, and at each block's last
// position with the block, for sequences that reuse the block.
void SaveBoundaries(const MtpModules& m, const StepContext& step, const ChunkRows& rows, int level,
                    Matrix<const float> output) {
  const Ops& ops = step.ops();
  const int tokens_per_block = step.cache.shape().tokens_per_block();
  std::vector<int32_t> block_of_row(rows.count(), -1);
  for (int row = 0; row < rows.count(); ++row) {
    const int position = rows.positions[row];
    if ((position + 1) % tokens_per_block == 0) {
      block_of_row[row] = step.slots.history_block(rows.slots[row], position / tokens_per_block);
    }
  }
  Upload(step.device, step.stream, block_of_row, m.block_index);
  ops.copy_rows(step.stream, {.out = m.LevelOf(level, step.cache.boundary(kBoundaries)),
                              .x = output,
                              .out_index = m.block_index,
                              .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    const int last_row = span.first_row + span.row_count - 1;
    ops.copy_rows(step.stream, {.out = m.LevelOf(level, m.slot_boundaries).row_range(span.slot, 1),
                                .x = output.row_range(last_row, 1),
                                .rows = 1});
  }
}

}  // namespace

void CheckModules(const LoadedConfig& loaded, const ModelConfig& model, int wanted, ConfigErrors& errors) {
  const std::string path = "speculative_config.max_draft_len";
  const int present = model.drafter.empty() ? model.num_nextn_predict_layers : 0;
  if (wanted <= present || errors.Refused(path)) return;
  const std::string allowed =
      !model.drafter.empty()
          ? absl::StrCat("0: this checkpoint has no MTP modules and drafts with decoding_type ",
                         model.drafter)
      : present == 0
          ? "0, the model has no MTP modules: config.json says num_nextn_predict_layers 0 (if the checkpoint "
            "has some, set it to their number)"
          : absl::StrFormat("0..%d, the model's MTP modules", present);
  errors.Add(path,
             RefuseKey(loaded, path, absl::StrCat(loaded.config.speculative_config->max_draft_len), allowed));
}

SlotRow MtpModules::Boundaries(const ModelConfig& model, int module_count) {
  return {.name = kBoundaries, .width = module_count * OutputWidth(model), .at_boundaries = true};
}

absl::StatusOr<MtpModules> MtpModules::Create(const DrafterSetup& setup, int module_count) {
  Device& device = setup.device;
  const int largest = setup.options.largest_forward();
  const int bucket = setup.options.batch_sizes.back();
  const int width = setup.model.output_width();
  MtpModules m;
  m.levels = &setup.model;
  m.module_count = module_count;
  m.reuse_generated = setup.options.reuse_generated;
  m.output_width = width;
  m.slot_boundaries = setup.slots.rows(kBoundaries);
  RETURN_IF_ERROR(AllocateBuffer(device, largest, m.rows));
  RETURN_IF_ERROR(AllocateBuffer(device, largest, width, m.previous));
  RETURN_IF_ERROR(AllocateBuffer(device, largest, width, m.output));
  RETURN_IF_ERROR(AllocateBuffer(device, bucket, width, m.last_output));
  RETURN_IF_ERROR(AllocateBuffer(device, bucket, m.last_row));
  RETURN_IF_ERROR(AllocateBuffer(device, largest, m.row_index));
  RETURN_IF_ERROR(AllocateBuffer(device, largest, m.block_index));
  ASSIGN_OR_RETURN(m.picker, DraftPicker::Create(device, bucket));
  return m;
}

Matrix<float> MtpModules::LevelOf(int level, Matrix<float> boundaries) const {
  return {boundaries.data + int64_t{level} * output_width, boundaries.rows, output_width, boundaries.stride};
}

void MtpModules::Prompt(const StepContext& step, Matrix<const float> target_output, const ChunkRows& chunks,
                        const RankRows& rank_rows) const {
  Matrix<const float> below = target_output;
  for (int level = 0; level < module_count; ++level) {
    GatherPrevious(*this, step, chunks, level, below);
    SaveBoundaries(*this, step, chunks, level, below);
    const Matrix<float> above = output.first_rows(chunks.count());
    const ChunkRows level_rows = RowsOfLevel(chunks, level + 1);
    Upload(step.device, step.stream, level_rows, rows);
    levels->RunModule(step.stream, level,
                      {.index = rows.index(chunks.count()),
                       .ids = rows.ids,
                       .previous = previous.first_rows(chunks.count()),
                       .spans = level_rows.spans,
                       .rank_rows = &rank_rows},
                      step.cache, above);
    below = above;
  }
}

void MtpModules::Run(const StepContext& step, const DraftInput& input, int level,
                     Matrix<const float> previous, Matrix<float> output) const {
  levels->RunModule(
      step.stream, level - 1,
      {.index = rows.index(output.rows), .ids = rows.ids, .previous = previous, .rank_rows = input.rank_rows},
      step.cache, output);
  if (level < module_count) KeepBoundaries(step, rows.index(output.rows), level, output);
}

void MtpModules::KeepTargetBoundaries(const StepContext& step, Matrix<const float> target_output) const {
  KeepBoundaries(step, step.buffers.target.index(target_output.rows), /*level=*/0, target_output);
}

// A rejected draft's row may write a boundary; the row of the committed token overwrites it later.
void MtpModules::KeepBoundaries(const StepContext& step, const RowIndex& index, int level,
                                Matrix<const float> output) const {
  if (!reuse_generated) return;
  const CacheGroupTable& table = step.cache.history_table();
  step.ops().border_blocks(step.stream, {.blocks = block_index,
                                         .row_slots = index.slots,
                                         .positions = index.positions,
                                         .block_tables = table.entries,
                                         .table_stride = table.stride,
                                         .tokens_per_block = step.cache.shape().tokens_per_block(),
                                         .count = index.rows});
  step.ops().copy_rows(step.stream, {.out = LevelOf(level, step.cache.boundary(kBoundaries)),
                                     .x = output,
                                     .out_index = block_index,
                                     .rows = index.rows});
}

void MtpModules::Recycle(const StepContext& step, const DraftInput& input, Matrix<const float> previous,
                         Matrix<float> output) const {
  levels->RunModule(step.stream, /*module=*/0,
                    {.index = rows.index(output.rows),
                     .ids = rows.ids,
                     .previous = previous,
                     .list_rows = last_row,
                     .rank_rows = input.rank_rows},
                    step.cache, output);
}

void MtpModules::PickDraft(const StepContext& step, const DraftInput& input, int draft_index,
                           int level) const {
  const Matrix<float> logits = step.buffers.logits.first_rows(input.bucket);
  levels->Logits(step.stream, level, last_output.first_rows(input.bucket), logits, input.rank_rows);
  picker.Pick(step, input, draft_index, logits);
}

}  // namespace foredraft
