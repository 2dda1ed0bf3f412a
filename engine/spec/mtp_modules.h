#pragma once

// The parts that drafters with MTP modules share (docs/speculation.md section 0): buffers for a module's
// rows, the boundary of each level, the modules' rows of prompt chunks, and drafts from a module's output.
// Owner: a drafter.

#include "absl/status/statusor.h"
#include "config/config_errors.h"
#include "config/loaded_config.h"
#include "engine/spec/draft_picker.h"
#include "engine/spec/drafter.h"
#include "engine/spec/drafter_kind.h"
#include "engine/spec/step_context.h"

namespace foredraft {

// Refuses speculative_config.max_draft_len where it needs `wanted` modules and the model has fewer.
void CheckModules(const LoadedConfig& loaded, const ModelConfig& model, int wanted, ConfigErrors& errors);

struct MtpModules {
  // The outputs of levels 0 .. M - 1 at the last prompt position computed, for the next chunk.
  static SlotRow Boundaries(const ModelConfig& model, int module_count);

  // Takes the model's own modules; a drafter with other modules sets `levels` afterwards.
  static absl::StatusOr<MtpModules> Create(const DrafterSetup& setup, int module_count);

  // Runs every module on the chunks' rows, level by level: each module takes the outputs of the level below,
  // the first one target_output, [rows, W].
  void Prompt(const StepContext& step, Matrix<const float> target_output, const ChunkRows& chunks,
              const RankRows& rank_rows) const;

  // Runs module `level` on the first output.rows rows of `rows`.
  void Run(const StepContext& step, const DraftInput& input, int level, Matrix<const float> previous,
           Matrix<float> output) const;
  // Runs module 1 again, on its own outputs, with one row per sequence. last_row still has the rows of the
  // first drafts (Batch::list_rows).
  void Recycle(const StepContext& step, const DraftInput& input, Matrix<const float> previous,
               Matrix<float> output) const;

  // If generated blocks may be reused, keeps the target's outputs of a decode step at the last positions of
  // blocks with the blocks. Run does the same for the outputs of all modules except the last.
  void KeepTargetBoundaries(const StepContext& step, Matrix<const float> target_output) const;

  // Picks draft `draft_index` (from 1) of each sequence from last_output, an output of `level`, into the
  // slots' drafts. Overwrites buffers.logits and sample_scratch.
  void PickDraft(const StepContext& step, const DraftInput& input, int draft_index, int level) const;

  void KeepBoundaries(const StepContext& step, const RowIndex& index, int level,
                      Matrix<const float> output) const;
  // The part of `level` (0..M-1) in a matrix of whole boundaries: [rows, output_width].
  Matrix<float> LevelOf(int level, Matrix<float> boundaries) const;

  const DraftLevels* levels = nullptr;
  int module_count = 0;
  bool reuse_generated = false;
  int output_width = 0;            // W, of Model
  Matrix<float> slot_boundaries;   // [slots, M * W]
  RowBuffers rows;                 // [R] of a module's forward
  Matrix<float> previous;          // [R, W] the rows' input from the level below
  Matrix<float> output;            // [R, W]
  Matrix<float> last_output;       // [B, W] the output at the row that the next draft comes from
  int32_t* last_row = nullptr;     // [B] that row's index
  int32_t* row_index = nullptr;    // [R] in a prefill: the row whose output a row takes, or -1
  int32_t* block_index = nullptr;  // [R] the block that keeps a row's output, or -1
  DraftPicker picker;
};

}  // namespace foredraft
