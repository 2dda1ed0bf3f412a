#pragma once

// Loads the files of a checkpoint into packed weights on a device.

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"
#include "engine/checkpoint/weight_source.h"
#include "kernels/device.h"

namespace foredraft {

// Loads from an open checkpoint that has passed CheckTensors, as `description` says. Host memory is bounded
// by the largest group of fused tensors; the embedding is streamed. Only the routed experts of the
// description's shard are read and counted in `progress`, which may be empty.
absl::StatusOr<LoadedWeights> LoadWeights(const Checkpoint& checkpoint, const ModelDescription& description,
                                          Device& device, Stream& stream, const LoadProgress& progress);

}  // namespace foredraft
