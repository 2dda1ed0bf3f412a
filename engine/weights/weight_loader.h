#ifndef FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_LOADER_H_
#define FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_LOADER_H_

// From a Hugging Face checkpoint directory to packed weights on a device.

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "config/model_config.h"
#include "engine/weights/expert_shard.h"
#include "engine/weights/model_weights.h"
#include "kernels/device.h"

namespace foredraft {

// Called on the loading thread after every tensor group; the last call has done_bytes == total_bytes.
using LoadProgress = std::function<void(int64_t done_bytes, int64_t total_bytes)>;

// Loads the model and its first `mtp_module_count` MTP modules (<= config.num_nextn_predict_layers). The
// whole checkpoint is checked before a byte is read, modules that are not asked for included: a missing,
// extra, wrongly shaped or wrongly typed tensor gives INVALID_ARGUMENT naming file and tensor. Host memory
// stays bounded by the largest fused group of tensors (embedding and head: streamed, or once for the head).
// Of the experts only those of `shard` are read, here and by `progress`, which may be empty.
absl::StatusOr<ModelWeights> LoadWeights(const std::string& checkpoint_dir, const ModelConfig& config,
                                         int mtp_module_count, Device& device, Stream& stream,
                                         const LoadProgress& progress, const ExpertShard& shard = {});

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_WEIGHTS_WEIGHT_LOADER_H_
