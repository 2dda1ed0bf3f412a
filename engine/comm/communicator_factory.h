#pragma once

// Chooses a rank's communicator by the size and backend of its group, among those that this binary has.

#include <memory>

#include "absl/status/statusor.h"
#include "engine/comm/communicator.h"
#include "engine/comm/communicator_options.h"
#include "engine/comm/rendezvous.h"
#include "kernels/device.h"

namespace foredraft {

// Joins the group and returns once all ranks are connected. `device` is the rank's own and outlives the
// communicator; `store` is used only during the call and may be null if size is 1. DEADLINE_EXCEEDED or
// UNAVAILABLE names the rank if the group does not form in time.
absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(const CommunicatorOptions& options,
                                                                 Device& device, RendezvousStore* store);

}  // namespace foredraft
