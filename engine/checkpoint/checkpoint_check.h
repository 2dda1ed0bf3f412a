#pragma once

#include <string>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"

namespace foredraft {

// Compares the tensors of a checkpoint with those of the description. INVALID_ARGUMENT names file and tensor:
// missing, extra, wrong shape, wrong dtype, FP8 without scales, scales without FP8, 4-bit codes whose parts
// do not fit.
absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelDescription& description);

// Reads the tensors that have to equal another one (a tied lm_head.weight, DSpark's copies of the target's
// embedding and head) and compares them.
// INVALID_ARGUMENT names the tensor that differs.
absl::Status CheckCopies(const Checkpoint& checkpoint, const ModelDescription& description);

// Scales with which other servers store keys and values in FP8. Rows of the cache here have scales of their
// own (kernels/kv_row.h), so these tensors are accepted and not read.
bool IsCacheScale(const std::string& name);

}  // namespace foredraft
