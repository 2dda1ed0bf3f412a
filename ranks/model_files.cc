#include "ranks/model_files.h"

#include <filesystem>

#include "base/status_macros.h"
#include "engine/kinds/drafter_kinds.h"
#include "engine/model_weights.h"

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

absl::StatusOr<CheckpointSummary> SummarizeModel(const Config& config, const ModelConfig& model) {
  if (config.load_format == LoadFormat::kDummy) return SummarizeConfig(model);
  ASSIGN_OR_RETURN(CheckpointSummary summary, SummarizeCheckpoint(config.model));
  const int module_count = DrafterNumbersOf(config, model).module_count;
  RETURN_IF_ERROR(
      CheckModuleCount(config.model, model, module_count, summary.config.num_nextn_predict_layers));
  RETURN_IF_ERROR(CheckInputScales(config.model, OfClass(config, model), module_count));
  return summary;
}

absl::StatusOr<LoadedWeights> LoadModel(const Config& config, const ModelConfig& model, Device& device,
                                        const LoadProgress& progress, const ModelShard& shard) {
  device.BeginPurpose("weights");
  const std::unique_ptr<Stream> stream = device.CreateStream();
  const int module_count = DrafterNumbersOf(config, model).module_count;
  const ModelConfig of_class = OfClass(config, model);
  if (config.load_format == LoadFormat::kDummy) {
    return MakeDummyWeights(of_class, module_count, device, *stream, progress, shard);
  }
  return LoadWeights(config.model, of_class, module_count, device, *stream, progress, shard);
}

}  // namespace foredraft
