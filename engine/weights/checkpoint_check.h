#ifndef FOREDRAFT_ENGINE_WEIGHTS_CHECKPOINT_CHECK_H_
#define FOREDRAFT_ENGINE_WEIGHTS_CHECKPOINT_CHECK_H_

#include "absl/status/status.h"
#include "config/model_config.h"
#include "engine/weights/checkpoint.h"
#include "engine/weights/model_description.h"

namespace foredraft {

// Compares the tensors of a checkpoint with the description of the whole model, all its MTP modules included.
// INVALID_ARGUMENT names file and tensor: missing, extra, wrong shape, wrong dtype, FP8 without scales,
// scales without FP8, 4-bit codes whose parts do not fit.
absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelConfig& config,
                          const ModelDescription& description);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_WEIGHTS_CHECKPOINT_CHECK_H_
