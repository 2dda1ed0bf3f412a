#pragma once

// Where a configuration's model comes from: a checkpoint directory or, with load_format dummy, also a
// directory without weights or a config.json alone.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/checkpoint/model_shard.h"
#include "engine/checkpoint/weight_source.h"
#include "engine/kinds/checkpoint_summary.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

// True if the model is a config.json alone, which only load_format dummy allows.
bool IsConfigJson(const Config& config);
std::string ConfigJsonOf(const Config& config);

// Reads the config.json of the drafter into `model`, where the configuration has one in a checkpoint of its
// own.
absl::Status ReadDrafter(const Config& config, ModelConfig& model);
// Reads the model's config.json, and the drafter's.
absl::StatusOr<ModelConfig> ReadModel(const Config& config, const std::string& config_json);

// ModelHash (ranks/identity.h) of the model, and of the drafter's checkpoint where there is one.
absl::StatusOr<std::string> HashOfModel(const Config& config);

// Summarizes the checkpoint. Refuses one without the MTP modules that the configuration runs.
absl::StatusOr<CheckpointSummary> SummarizeModel(const Config& config, const ModelConfig& model);

// Loads, or makes if load_format is dummy, the weights that the configuration runs, the drafter's among
// them; of the routed experts only `shard`'s.
absl::StatusOr<LoadedWeights> LoadModel(const Config& config, const ModelConfig& model, Device& device,
                                        const LoadProgress& progress, const ModelShard& shard);

}  // namespace foredraft
