#include "server/model_files.h"

#include <filesystem>

#include "config/config_defaults.h"
#include "engine/weights/dummy_weights.h"
#include "server/synth_tokenizer.h"

namespace foredraft {
namespace {

bool IsDummy(const Config& config) { return config.load_format == "dummy"; }

// A config.json alone; only a dummy may be one.
bool IsConfigJson(const Config& config) {
  std::error_code error;
  return IsDummy(config) && std::filesystem::is_regular_file(config.model, error);
}

}  // namespace

std::string ConfigJsonOf(const Config& config) {
  return IsConfigJson(config) ? config.model : config.model + "/config.json";
}

absl::StatusOr<std::unique_ptr<Tokenizer>> LoadTokenizer(const Config& config, const ModelConfig& model) {
  const std::string path = config.model + "/tokenizer.json";
  std::error_code error;
  if (IsDummy(config) && !std::filesystem::exists(path, error)) {
    return Tokenizer::Parse(SynthTokenizerJson(model), /*tokenizer_config_json=*/"");
  }
  return Tokenizer::Load(path);
}

absl::StatusOr<GenerationConfig> LoadGenerationConfig(const Config& config) {
  if (IsConfigJson(config)) return GenerationConfig{};
  return ReadGenerationConfig(config.model + "/generation_config.json");
}

absl::StatusOr<CheckpointSummary> SummarizeModel(const Config& config, const ModelConfig& model) {
  if (IsDummy(config)) return SummarizeConfig(model);
  return SummarizeCheckpoint(config.model);
}

absl::StatusOr<ModelWeights> LoadModel(const Config& config, const ModelConfig& model, Device& device,
                                       const LoadProgress& progress, const ExpertShard& shard) {
  device.BeginPurpose("weights");
  const std::unique_ptr<Stream> stream = device.CreateStream();
  const int module_count = MtpModuleCount(config);
  if (IsDummy(config)) return MakeDummyWeights(model, module_count, device, *stream, progress, shard);
  return LoadWeights(config.model, model, module_count, device, *stream, progress, shard);
}

}  // namespace foredraft
