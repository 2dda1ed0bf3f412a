#include "engine/spec/eagle3/eagle3_drafter.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint_check.h"
#include "engine/checkpoint/weight_loader.h"
#include "engine/spec/eagle3/eagle3_config.h"
#include "engine/spec/eagle3/eagle3_description.h"
#include "engine/spec/eagle3/eagle3_head.h"
#include "engine/spec/mtp_modules.h"
#include "engine/spec/recycling_drafter.h"

namespace foredraft {
namespace {

class Eagle3Drafter : public RecyclingDrafter {
 public:
  static absl::StatusOr<std::unique_ptr<Drafter>> Create(const DrafterSetup& setup);

 protected:
  Matrix<const float> TargetRows(const StepContext& step, GemmForm form, int rows) const override {
    const Matrix<float> fused = fused_.first_rows(rows);
    if (rows > 0) head_->Fuse(step.stream, form, fused);
    return fused;
  }
  Matrix<const float> EndedRows(const StepContext& step, const DraftInput& input) const override {
    const Matrix<float> ended = ended_.first_rows(input.bucket);
    step.ops().copy_rows(
        step.stream, {.out = ended, .x = fused_, .x_index = step.buffers.ended_index, .rows = input.bucket});
    return ended;
  }

 private:
  Eagle3Drafter(const MtpModules& module, std::unique_ptr<Eagle3Head> head)
      : RecyclingDrafter(module), head_(std::move(head)) {}

  const std::unique_ptr<Eagle3Head> head_;
  Matrix<float> fused_;  // [R, D] fused rows f of the target's rows
  Matrix<float> ended_;  // [B, D] fused rows at the ends of prompts
};

absl::StatusOr<std::unique_ptr<Drafter>> Eagle3Drafter::Create(const DrafterSetup& setup) {
  CHECK(setup.weights != nullptr) << "the head's weights are loaded with the model's";
  const EngineOptions& options = setup.options;
  ASSIGN_OR_RETURN(std::unique_ptr<Eagle3Head> head,
                   Eagle3Head::Create(setup.device, setup.model, *setup.weights->Find<Eagle3Weights>(),
                                      {.rows = options.largest_forward(),
                                       .decode_rows = options.largest_decode_forward(),
                                       .positions = options.position_count()},
                                      options.kv_format));
  ASSIGN_OR_RETURN(MtpModules module, MtpModules::Create(setup, /*module_count=*/1));
  module.levels = head.get();
  std::unique_ptr<Eagle3Drafter> drafter(new Eagle3Drafter(module, std::move(head)));
  const int width = setup.model.output_width();
  RETURN_IF_ERROR(AllocateBuffer(setup.device, options.largest_forward(), width, drafter->fused_));
  RETURN_IF_ERROR(AllocateBuffer(setup.device, options.batch_sizes.back(), width, drafter->ended_));
  return drafter;
}

bool Selected(const SpeculativeConfig& config) { return config.decoding_type == DecodingType::kEagle3; }

void Check(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors) {
  const SpeculativeConfig& config = *loaded.config.speculative_config;
  const auto refuse = [&](const std::string& path, const std::string& value, const std::string& allowed) {
    if (!errors.Refused(path)) errors.Add(path, RefuseKey(loaded, path, value, allowed));
  };
  if (model.kv_lora_rank == 0) {
    refuse("speculative_config.decoding_type", NameOf(config.decoding_type),
           absl::StrCat("MTP, DSpark: ", model.architecture, " gives a head no hidden states of its layers"));
  }
  if (config.use_mtp_vanilla) {
    refuse("speculative_config.use_mtp_vanilla", "true", "false with decoding_type Eagle3");
  }
}

DrafterRequirements Requirements(const ModelConfig&, int max_draft_len) {
  return {.rows_ahead = max_draft_len};
}

std::vector<SlotRow> SlotRows(const EngineOptions&, const ModelConfig& model) {
  return {MtpModules::Boundaries(model, /*module_count=*/1)};
}

ModelDescription Describe(const ModelConfig& model) { return DescribeEagle3(*model.draft_head); }

absl::StatusOr<LoadedWeights> Load(const ModelConfig& model, Device& device, Stream& stream) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, OpenEagle3(model.draft_head->dir));
  const ModelDescription description = Describe(model);
  RETURN_IF_ERROR(CheckTensors(checkpoint, description));
  return LoadWeights(checkpoint, description, device, stream, /*progress=*/nullptr);
}

}  // namespace

const DrafterKind kEagle3 = {.name = "eagle3",
                             .selected = Selected,
                             .check = Check,
                             .requirements = Requirements,
                             .slot_rows = SlotRows,
                             .create = Eagle3Drafter::Create,
                             .read = ReadEagle3,
                             .describe = Describe,
                             .load = Load};

}  // namespace foredraft
