#pragma once

// Random weights in the shapes of a checkpoint, made on the device (load_format: dummy): true shapes and
// traffic without files. The tokens mean nothing.

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/checkpoint/expert_shard.h"
#include "engine/checkpoint/weight_source.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"

namespace foredraft {

// The model and `mtp_module_count` MTP modules. Projections have the formats of `config` where FormatChoice
// quantises them; the rest is BF16, or FP32 as in a checkpoint. Values are scaled so that activations stay of
// order one; norms are 1. The same config gives the same values on every backend.
// Routed experts are made for `shard` alone.
absl::StatusOr<LoadedWeights> MakeDummyWeights(const ModelConfig& config, int mtp_module_count,
                                               Device& device, Stream& stream, const LoadProgress& progress,
                                               const ExpertShard& shard = {});

// Allocates what MakeDummyWeights would, for a device that only adds up bytes (kernels/sizing_device.h).
absl::StatusOr<LoadedWeights> AllocateDummyWeights(const ModelConfig& config, int mtp_module_count,
                                                   Device& device, const ExpertShard& shard);

// Bytes of all tensors of such a checkpoint: quantised ones with their scales, the rest BF16, or F32 and I64
// where vendors have that.
int64_t DummyBytes(const ModelConfig& config, int mtp_module_count);

}  // namespace foredraft
