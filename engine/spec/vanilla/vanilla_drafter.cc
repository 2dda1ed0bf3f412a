#include "engine/spec/vanilla/vanilla_drafter.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/spec/mtp_modules.h"

namespace foredraft {
namespace {

// Slot rows: the tokens at the last Kmax positions p-Kmax+1..p and the target's hiddens at p-Kmax..p-1
// (docs/speculation.md section 4). While a prompt is computed up to position b: tokens and hiddens at
// b-Kmax..b-1.
constexpr char kRecentIds[] = "recent_ids";
constexpr char kRecentHiddens[] = "recent_hiddens";

class VanillaDrafter : public Drafter {
 public:
  static absl::StatusOr<std::unique_ptr<Drafter>> Create(const DrafterSetup& setup);

  void Prompt(const StepContext& step, SlotState& slots, const ChunkRows& chunks,
              const RankRows& rank_rows) const override;
  void FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const override;
  void Draft(const StepContext& step, const DraftInput& input, int draft_count) const override;

 private:
  void SaveRecent(const StepContext& step, SlotState& slots, const ChunkRows& chunks,
                  const PrefillSpan& span) const;
  void FirstWindow(const StepContext& step, const DraftInput& input) const;

  MtpModules m_;
  int recent_len_ = 0;               // Kmax
  int32_t* recent_ids_ = nullptr;    // [slots, Kmax]
  Matrix<float> recent_hiddens_;     // [slots * Kmax, W]
  int32_t* recent_index_ = nullptr;  // [S] index of a recent row's hidden in the recent hiddens, or -1
  int32_t* target_index_ = nullptr;  // [S] its index in target_output, or -1
  int32_t* save_index_ = nullptr;    // [S] its new index in the recent hiddens, or -1
  Matrix<float> even_output_;        // [S, W] outputs of levels 2, 4, 6: each level reads the one below
  Matrix<float> moved_recent_;       // [Kmax, W] a slot's recent hiddens while they move
};

absl::StatusOr<std::unique_ptr<Drafter>> VanillaDrafter::Create(const DrafterSetup& setup) {
  Device& device = setup.device;
  const EngineOptions& options = setup.options;
  const SlotState& slots = setup.slots;
  const int step_rows = options.largest_step();
  const int width = setup.model.output_width();
  auto drafter = std::make_unique<VanillaDrafter>();
  ASSIGN_OR_RETURN(drafter->m_, MtpModules::Create(setup, options.drafter_requirements.module_count));
  drafter->recent_len_ = options.max_draft_len;
  drafter->recent_ids_ = slots.int_rows(kRecentIds);
  drafter->recent_hiddens_ =
      Dense(slots.rows(kRecentHiddens).data, slots.slot_count() * options.max_draft_len, width);
  RETURN_IF_ERROR(AllocateBuffer(device, step_rows, drafter->recent_index_));
  RETURN_IF_ERROR(AllocateBuffer(device, step_rows, drafter->target_index_));
  RETURN_IF_ERROR(AllocateBuffer(device, step_rows, drafter->save_index_));
  RETURN_IF_ERROR(AllocateBuffer(device, step_rows, width, drafter->even_output_));
  RETURN_IF_ERROR(AllocateBuffer(device, options.max_draft_len, width, drafter->moved_recent_));
  return drafter;
}

void VanillaDrafter::Prompt(const StepContext& step, SlotState& slots, const ChunkRows& chunks,
                            const RankRows& rank_rows) const {
  m_.Prompt(step, step.buffers.target_output.first_rows(chunks.count()), chunks, rank_rows);
  for (const PrefillSpan& span : chunks.spans) SaveRecent(step, slots, chunks, span);
}

// Moves the recent ids and hiddens to the end of a chunk.
void VanillaDrafter::SaveRecent(const StepContext& step, SlotState& slots, const ChunkRows& chunks,
                                const PrefillSpan& span) const {
  const Ops& ops = step.ops();
  Stream& stream = step.stream;
  const int kept = std::max(0, recent_len_ - span.row_count);
  const int fresh = recent_len_ - kept;
  const int first_fresh = span.first_row + span.row_count - fresh;
  std::vector<int32_t>& ids = slots.host_row(kRecentIds, span.slot);
  std::copy(ids.begin() + fresh, ids.end(), ids.begin());
  std::copy_n(chunks.ids.begin() + first_fresh, fresh, ids.begin() + kept);
  Upload(step.device, stream, ids, recent_ids_ + int64_t{span.slot} * recent_len_);
  // Through a buffer, because the old rows move within their own matrix.
  const Matrix<float> recent = recent_hiddens_.row_range(span.slot * recent_len_, recent_len_);
  ops.copy_rows(stream, {.out = moved_recent_, .x = recent.row_range(fresh, kept), .rows = kept});
  ops.copy_rows(stream, {.out = moved_recent_.row_range(kept, fresh),
                         .x = step.buffers.target_output.row_range(first_fresh, fresh),
                         .rows = fresh});
  ops.copy_rows(stream, {.out = recent, .x = moved_recent_, .rows = recent_len_});
}

// Fills the rows and `previous` with module 1's recent rows, and moves the recent ids and hiddens.
void VanillaDrafter::FirstWindow(const StepContext& step, const DraftInput& input) const {
  const Ops& ops = step.ops();
  Stream& stream = step.stream;
  const int rows = input.bucket * (recent_len_ + 1);
  const Matrix<float> previous = m_.previous.first_rows(rows);
  ops.recent_rows(stream, {.ids = m_.rows.ids,
                           .row_slots = m_.rows.slots,
                           .positions = m_.rows.positions,
                           .recent_index = recent_index_,
                           .target_index = target_index_,
                           .save_index = save_index_,
                           .recent_ids = recent_ids_,
                           .outputs = input.outputs,
                           .bucket = input.bucket,
                           .draft_len = input.draft_len,
                           .max_draft_len = recent_len_});
  ops.copy_rows(stream, {.out = previous, .x = recent_hiddens_, .x_index = recent_index_, .rows = rows});
  ops.copy_rows(stream, {.out = previous, .x = input.target_output, .x_index = target_index_, .rows = rows});
  ops.copy_rows(stream, {.out = recent_hiddens_, .x = previous, .out_index = save_index_, .rows = rows});
}

// For a prompt of m tokens, runs row m of every module: the first token, with the output of the level below
// at m - 1, which the prompt left as the slot's boundary.
void VanillaDrafter::FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const {
  const Ops& ops = step.ops();
  Stream& stream = step.stream;
  const int rows = input.bucket;
  const Matrix<float> output = m_.output.first_rows(rows);
  const Matrix<float> previous = m_.previous.first_rows(rows);
  for (int level = 1; level <= m_.module_count; ++level) {
    ops.emitted_rows(stream, {.ids = m_.rows.ids,
                              .row_slots = m_.rows.slots,
                              .positions = m_.rows.positions,
                              .last_row = m_.last_row,
                              .outputs = input.outputs,
                              .bucket = rows,
                              .draft_len = 0,
                              .level = level});
    ops.copy_rows(stream, {.out = previous,
                           .x = m_.LevelOf(level - 1, m_.slot_boundaries),
                           .x_index = m_.rows.slots,
                           .rows = rows});
    m_.Run(step, input, level, previous, output);
    if (level == 1 && draft_count > 0) {
      ops.copy_rows(stream, {.out = m_.last_output, .x = output, .rows = rows});
      m_.PickDraft(step, input, 1, level);
    }
  }
  ops.append_recent(
      stream,
      {.recent_ids = recent_ids_, .outputs = input.outputs, .count = rows, .max_draft_len = recent_len_});
}

void VanillaDrafter::Draft(const StepContext& step, const DraftInput& input, int draft_count) const {
  const Ops& ops = step.ops();
  Stream& stream = step.stream;
  const int recent_rows = recent_len_ + 1;
  const int rows = input.bucket * recent_rows;
  m_.KeepTargetBoundaries(step, input.target_output);
  FirstWindow(step, input);
  Matrix<float> previous = m_.previous.first_rows(rows);
  for (int level = 1; level <= m_.module_count; ++level) {
    const Matrix<float> output = (level % 2 == 0 ? even_output_ : m_.output).first_rows(rows);
    if (level > 1) {
      ops.recent_level_rows(stream, {.ids = m_.rows.ids,
                                     .row_slots = m_.rows.slots,
                                     .positions = m_.rows.positions,
                                     .recent_ids = recent_ids_,
                                     .outputs = input.outputs,
                                     .slots = step.slots.arrays(),
                                     .bucket = input.bucket,
                                     .max_draft_len = recent_len_,
                                     .level = level});
    }
    m_.Run(step, input, level, previous, output);
    if (level <= draft_count) {
      const Matrix<float> last_rows = {output.row(recent_rows - 1), input.bucket, output.cols,
                                       recent_rows * output.stride};
      ops.copy_rows(stream, {.out = m_.last_output, .x = last_rows, .rows = input.bucket});
      m_.PickDraft(step, input, level, level);
    }
    previous = output;  // a module's outputs are the next one's hiddens, unshifted
  }
}

bool Selected(const SpeculativeConfig& config) {
  return config.decoding_type == DecodingType::kMtp && config.use_mtp_vanilla;
}

void Check(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors) {
  CheckModules(loaded, model, loaded.config.speculative_config->max_draft_len, errors);
  if (!model.recycles_module) return;
  errors.Add("speculative_config.use_mtp_vanilla",
             RefuseKey(loaded, "speculative_config.use_mtp_vanilla", "true",
                       absl::StrCat("false with ", model.architecture, ": its one module is recycled")));
}

DrafterRequirements Requirements(const ModelConfig&, int max_draft_len) {
  return {.module_count = max_draft_len,
          .rows_ahead = max_draft_len,
          .reuse_reserve = max_draft_len,
          .offer_margin = max_draft_len - 1,
          // The recent rows rewrite at most 2 new rows of the last module (docs/speculation.md section 4).
          .given_limit = 2};
}

std::vector<SlotRow> SlotRows(const EngineOptions& options, const ModelConfig& model) {
  const int recent_len = options.max_draft_len;
  return {MtpModules::Boundaries(model, options.drafter_requirements.module_count),
          {.name = kRecentIds, .width = recent_len, .on_host = true},
          {.name = kRecentHiddens, .width = recent_len * OutputWidth(model)}};
}

}  // namespace

const DrafterKind kVanilla = {.name = "vanilla",
                              .selected = Selected,
                              .check = Check,
                              .requirements = Requirements,
                              .slot_rows = SlotRows,
                              .create = VanillaDrafter::Create};

}  // namespace foredraft
