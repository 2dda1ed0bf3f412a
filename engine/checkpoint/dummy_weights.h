#pragma once

// Random weights in the shapes of a checkpoint, made on the device (load_format: dummy): shapes and memory
// traffic are real, without files. The tokens mean nothing.

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/checkpoint/weight_source.h"
#include "kernels/device.h"

namespace foredraft {

// Makes the weights of the description. Projections that FormatChoice quantises have the description's
// formats; the rest is BF16, or FP32 where a checkpoint's is. Values are scaled so that activations stay of
// order one; norms are 1. The same model gives the same values on every backend. Only the routed experts of
// the description's shard are made.
absl::StatusOr<LoadedWeights> MakeDummyWeights(const ModelDescription& description, Device& device,
                                               Stream& stream, const LoadProgress& progress);

// Allocates what MakeDummyWeights would, for a device that only adds up bytes
// (kernels/devices/sizing_device.h).
absl::StatusOr<LoadedWeights> AllocateDummyWeights(const ModelDescription& description, Device& device);

// Bytes of all tensors of such a checkpoint: quantised ones with their scales, the rest BF16, or F32 or I64
// where vendors store that.
int64_t DummyBytes(const ModelDescription& description);

}  // namespace foredraft
