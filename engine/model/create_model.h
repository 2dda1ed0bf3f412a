#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/comm/communicator.h"
#include "engine/model/activations.h"
#include "engine/model/model.h"

namespace foredraft {

// The model that the weights are of. The device, the communicator and the weights' memory outlive it.
// UNIMPLEMENTED where the device's backend lacks the model's ops.
absl::StatusOr<std::unique_ptr<Model>> CreateModel(Device& device, Communicator& comm,
                                                   const ModelConfig& config, LoadedWeights weights,
                                                   const ForwardCapacity& capacity);

}  // namespace foredraft
