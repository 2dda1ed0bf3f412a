#pragma once

// From a Hugging Face checkpoint directory to packed weights on a device.

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/expert_shard.h"
#include "engine/checkpoint/model_description.h"
#include "engine/checkpoint/weight_source.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

// Loads the model and its first `mtp_module_count` MTP modules, which CheckModuleCount has to allow. The
// whole checkpoint is checked before any data is read, including modules that are not loaded: a missing,
// extra, wrongly shaped or wrongly typed tensor gives INVALID_ARGUMENT naming file and tensor. Host memory is
// bounded by the largest group of fused tensors; the embedding is streamed. Only the routed experts of
// `shard` are read and counted in `progress`, which may be empty.
absl::StatusOr<LoadedWeights> LoadWeights(const std::string& checkpoint_dir, const ModelConfig& config,
                                          int mtp_module_count, Device& device, Stream& stream,
                                          const LoadProgress& progress, const ExpertShard& shard = {});

// Loads from an open checkpoint that has passed CheckTensors, as `description` says.
absl::StatusOr<LoadedWeights> LoadWeights(const Checkpoint& checkpoint, const ModelConfig& config,
                                          const ModelDescription& description, Device& device, Stream& stream,
                                          const LoadProgress& progress);

}  // namespace foredraft
