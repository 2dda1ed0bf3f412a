#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"

namespace foredraft {

// Compares a checkpoint's tensors with the description's. INVALID_ARGUMENT names file and tensor: one that is
// missing, extra, or of a wrong shape or dtype, FP8 without scales, scales without FP8, or 4-bit codes whose
// parts do not match.
absl::Status CheckTensors(const Checkpoint& checkpoint, const ModelDescription& description);

// Reads the tensors that have to equal another one (a tied lm_head.weight, DSpark's copies of the target's
// embedding and head) and compares them.
// INVALID_ARGUMENT names the tensor that differs.
absl::Status CheckCopies(const Checkpoint& checkpoint, const ModelDescription& description);

// The scales by which the inputs of a layer's experts are rounded (moe.inputs), one per expert: the largest
// scale of the expert's tensors, as TensorRT-LLM and vLLM merge the scales of gate and up. Empty if the
// experts belong to an MTP module and are not in NVFP4: their inputs stay BF16. INVALID_ARGUMENT names a
// tensor that is not in NVFP4 or whose inputs have no scale.
absl::StatusOr<std::vector<float>> ReadInputScales(const Checkpoint& checkpoint,
                                                   const ModelDescription& description,
                                                   const ExpertsMember& experts);
// Reads the input scales of all layers of a description with nvfp4_inputs, before anything is loaded.
absl::Status CheckInputScales(const Checkpoint& checkpoint, const ModelDescription& description);

// True for a scale with which other servers store keys and values in FP8. Cache rows here have scales of
// their own (kernels/kv_row.h), so such tensors are accepted and not read.
bool IsCacheScale(const std::string& name);
// True for a scale of inputs. These are read only with moe.inputs: nvfp4.
bool IsInputScale(const std::string& name);

}  // namespace foredraft
