#pragma once

// The weights of a model, by its configuration: from a checkpoint's directory, or random ones. The steps that
// need the ModelConfig are here; those that need the description alone are in engine/checkpoint.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/checkpoint/model_shard.h"
#include "engine/checkpoint/weight_source.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

// Opens the checkpoint of `config`. Find takes the description's names, whichever of the model's spellings
// the files use.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& dir, const ModelConfig& config);

// Checks the tensors of a whole checkpoint against its config.json and returns the number of MTP modules that
// can be loaded: config.num_nextn_predict_layers, or fewer where the checkpoint lacks all tensors of the last
// modules or of all modules (transformers leaves them out when it saves a model). Modules that config.json
// does not declare are checked and not loaded.
absl::StatusOr<int> CheckCheckpoint(const Checkpoint& checkpoint, const ModelConfig& config);

// FAILED_PRECONDITION, saying what to do, where `wanted` MTP modules are more than the `loadable` ones that
// CheckCheckpoint found in `dir`.
absl::Status CheckModuleCount(const std::string& dir, const ModelConfig& config, int wanted, int loadable);

// Where the configuration rounds inputs of experts (ModelConfig::nvfp4_inputs): INVALID_ARGUMENT names a
// tensor of the checkpoint that is not in NVFP4 or whose inputs have no scale. LoadWeights checks it, too.
absl::Status CheckInputScales(const std::string& dir, const ModelConfig& config, int mtp_module_count);

// Loads the model and its first `mtp_module_count` MTP modules, which CheckModuleCount has to allow, for
// `shard`. The whole checkpoint is checked before any data is read, including modules that are not loaded: a
// missing, extra, wrongly shaped or wrongly typed tensor gives INVALID_ARGUMENT naming file and tensor.
absl::StatusOr<LoadedWeights> LoadWeights(const std::string& checkpoint_dir, const ModelConfig& config,
                                          int mtp_module_count, Device& device, Stream& stream,
                                          const LoadProgress& progress, const ModelShard& shard = {});

// These three are as in engine/checkpoint/dummy_weights.h, for the model and its first `mtp_module_count` MTP
// modules.
absl::StatusOr<LoadedWeights> MakeDummyWeights(const ModelConfig& config, int mtp_module_count,
                                               Device& device, Stream& stream, const LoadProgress& progress,
                                               const ModelShard& shard = {});
absl::StatusOr<LoadedWeights> AllocateDummyWeights(const ModelConfig& config, int mtp_module_count,
                                                   Device& device, const ModelShard& shard);
int64_t DummyBytes(const ModelConfig& config, int mtp_module_count);

}  // namespace foredraft
