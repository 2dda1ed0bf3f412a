#include "engine/spec/eagle/eagle_drafter.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "engine/spec/mtp_modules.h"

namespace foredraft {
namespace {

class EagleDrafter : public Drafter {
 public:
  explicit EagleDrafter(const MtpModules& module) : m_(module) {}

  void Prompt(const StepContext& step, SlotState& /*slots*/, const ChunkRows& chunks,
              const RankRows& rank_rows) const override {
    m_.Prompt(step, chunks, rank_rows);
  }
  void FirstDraft(const StepContext& step, const DraftInput& input, int draft_count) const override {
    DraftFromEmitted(step, input, std::min(draft_count, 1));
  }
  void Draft(const StepContext& step, const DraftInput& input, int draft_count) const override {
    m_.KeepTargetBoundaries(step, input.target_output);
    DraftFromEmitted(step, input, draft_count);
  }

 private:
  void DraftFromEmitted(const StepContext& step, const DraftInput& input, int draft_count) const;

  const MtpModules m_;
};

void EagleDrafter::DraftFromEmitted(const StepContext& step, const DraftInput& input, int draft_count) const {
  const Ops& ops = step.ops();
  Stream& stream = step.stream;
  const int rows = input.bucket * (input.draft_len + 1);
  const Matrix<float> last_output = m_.last_output.first_rows(input.bucket);

  // Positions p+1..p+n with true outputs; draft 1 comes from the last of them.
  ops.emitted_rows(stream, {.ids = m_.rows.ids,
                            .row_slots = m_.rows.slots,
                            .positions = m_.rows.positions,
                            .last_row = m_.last_row,
                            .outputs = input.outputs,
                            .bucket = input.bucket,
                            .draft_len = input.draft_len,
                            .level = 1});
  m_.Run(step, input, /*level=*/1, input.target_output, m_.output.first_rows(rows));
  if (draft_count == 0) return;
  ops.copy_rows(
      stream,
      {.out = last_output, .x = m_.output.first_rows(rows), .x_index = m_.last_row, .rows = input.bucket});
  m_.PickDraft(step, input, 1, /*level=*/1);

  // The module recycled: one row per sequence, its own output as the hidden.
  for (int draft = 2; draft <= draft_count; ++draft) {
    const Matrix<float> output = m_.output.first_rows(input.bucket);
    ops.next_draft_rows(stream, {.ids = m_.rows.ids,
                                 .row_slots = m_.rows.slots,
                                 .positions = m_.rows.positions,
                                 .draft_ids = m_.picker.draft_ids(),
                                 .outputs = input.outputs,
                                 .bucket = input.bucket,
                                 .draft_index = draft - 1});
    m_.Recycle(step, input, last_output, output);
    ops.copy_rows(stream, {.out = last_output, .x = output, .rows = input.bucket});
    m_.PickDraft(step, input, draft, /*level=*/1);
  }
}

bool Selected(const SpeculativeConfig& config) {
  return config.decoding_type == DecodingType::kMtp && !config.use_mtp_vanilla;
}

void Check(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors) {
  CheckModules(loaded, model, /*wanted=*/1, errors);
}

DrafterNumbers Numbers(const ModelConfig&, int max_draft_len) {
  return {.module_count = 1, .rows_ahead = max_draft_len};
}

std::vector<SlotRow> SlotRows(const EngineOptions&, const ModelConfig& model) {
  return {MtpModules::Boundaries(model, /*module_count=*/1)};
}

absl::StatusOr<std::unique_ptr<Drafter>> Create(Device& device, const EngineOptions& options,
                                                const ModelConfig& model, const SlotState& slots) {
  ASSIGN_OR_RETURN(MtpModules module, MtpModules::Create(device, options, model, slots));
  return std::make_unique<EagleDrafter>(module);
}

}  // namespace

const DrafterKind kEagle = {.name = "eagle",
                            .selected = Selected,
                            .check = Check,
                            .numbers = Numbers,
                            .slot_rows = SlotRows,
                            .create = Create};

}  // namespace foredraft
