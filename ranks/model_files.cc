#include "ranks/model_files.h"

#include <filesystem>
#include <utility>

#include "base/status_macros.h"
#include "engine/checkpoint/dummy_weights.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model_weights.h"
#include "ranks/identity.h"

namespace foredraft {

bool IsConfigJson(const Config& config) {
  std::error_code error;
  return config.load_format == LoadFormat::kDummy && std::filesystem::is_regular_file(config.model, error);
}

std::string ConfigJsonOf(const Config& config) {
  return IsConfigJson(config) ? config.model : config.model + "/config.json";
}

namespace {

ModelConfig OfClass(const Config& config, const ModelConfig& model) {
  ModelConfig of_class = model;
  of_class.nvfp4_inputs = config.moe.inputs == MoeInputs::kNvfp4;
  return of_class;
}

}  // namespace

absl::Status ReadDrafter(const Config& config, ModelConfig& model) {
  const DrafterKind* const drafter = SelectedDrafter(config);
  if (drafter == nullptr || drafter->read == nullptr) return absl::OkStatus();
  return drafter->read(config, model);
}

absl::StatusOr<ModelConfig> ReadModel(const Config& config, const std::string& config_json) {
  ASSIGN_OR_RETURN(ModelConfig model, ReadModelConfig(config_json));
  RETURN_IF_ERROR(ReadDrafter(config, model));
  return model;
}

absl::StatusOr<std::string> HashOfModel(const Config& config) {
  ASSIGN_OR_RETURN(std::string hash, ModelHash(config.model));
  if (!config.speculative_config || config.speculative_config->speculative_model.empty()) return hash;
  ASSIGN_OR_RETURN(const std::string head, ModelHash(config.speculative_config->speculative_model));
  return hash + "+" + head;
}

absl::StatusOr<CheckpointSummary> SummarizeModel(const Config& config, const ModelConfig& model) {
  if (config.load_format == LoadFormat::kDummy) return SummarizeConfig(model);
  ASSIGN_OR_RETURN(CheckpointSummary summary, SummarizeCheckpoint(config.model));
  const int module_count = DrafterRequirementsOf(config, model).module_count;
  RETURN_IF_ERROR(
      CheckModuleCount(config.model, model, module_count, summary.config.num_nextn_predict_layers));
  RETURN_IF_ERROR(CheckInputScales(config.model, OfClass(config, model), module_count));
  return summary;
}

absl::StatusOr<LoadedWeights> LoadModel(const Config& config, const ModelConfig& model, Device& device,
                                        const LoadProgress& progress, const ModelShard& shard) {
  device.BeginPurpose("weights");
  const std::unique_ptr<Stream> stream = device.CreateStream();
  const int module_count = DrafterRequirementsOf(config, model).module_count;
  const ModelConfig of_class = OfClass(config, model);
  const bool dummy = config.load_format == LoadFormat::kDummy;
  ASSIGN_OR_RETURN(LoadedWeights weights,
                   dummy
                       ? MakeDummyWeights(of_class, module_count, device, *stream, progress, shard)
                       : LoadWeights(config.model, of_class, module_count, device, *stream, progress, shard));
  const DrafterKind* const drafter = SelectedDrafter(config);
  if (drafter == nullptr || drafter->load == nullptr) return weights;
  ASSIGN_OR_RETURN(LoadedWeights of_drafter,
                   dummy ? MakeDummyWeights(drafter->describe(model), device, *stream, /*progress=*/nullptr)
                         : drafter->load(model, device, *stream));
  weights.SetDrafter(std::move(of_drafter));
  return weights;
}

}  // namespace foredraft
