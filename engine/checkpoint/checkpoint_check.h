#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"
#include "engine/model/model_config.h"

namespace foredraft {

// Checks the tensors of a whole checkpoint against its config.json and returns the number of MTP modules that
// can be loaded: config.num_nextn_predict_layers, or fewer where the checkpoint has no tensor of the last
// ones, or of any (transformers leaves them out when it saves a model). Modules that config.json does not
// declare are checked and not loaded.
absl::StatusOr<int> CheckCheckpoint(const Checkpoint& checkpoint, const ModelConfig& config);

// FAILED_PRECONDITION, saying what to do, where `wanted` MTP modules are more than the `loadable` ones that
// CheckCheckpoint found in `dir`.
absl::Status CheckModuleCount(const std::string& dir, const ModelConfig& config, int wanted, int loadable);

// Compares the tensors of a checkpoint with those of the description. INVALID_ARGUMENT names file and tensor:
// missing, extra, wrong shape, wrong dtype, FP8 without scales, scales without FP8, 4-bit codes whose parts
// do not fit.
absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ModelDescription& description);

// Reads the tensors that have to equal another one (a tied lm_head.weight, DSpark's copies of the target's
// embedding and head) and compares them.
// INVALID_ARGUMENT names the tensor that differs.
absl::Status CheckCopies(const Checkpoint& checkpoint, const ModelDescription& description);

// Scales with which other servers store keys and values in FP8. Rows of the cache here have scales of their
// own (kernels/kv_row.h), so these tensors are accepted and not read.
bool IsCacheScale(const std::string& name);

}  // namespace foredraft
