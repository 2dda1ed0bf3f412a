#pragma once

// Chooses the communicator of a rank from its group's size and backend, among those that this binary has.

#include <chrono>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/comm/communicator.h"
#include "engine/comm/rendezvous.h"
#include "kernels/device.h"

namespace foredraft {

struct CommunicatorOptions {
  int rank = 0;
  int size = 1;                               // 1, 2, 4, 8
  Backend backend = Backend::kCpu;            // cpu: Gloo; cuda: NCCL
  std::string interface = "lo";               // parallel.interface: carries the tensors
  std::chrono::milliseconds step_timeout{0};  // of every collective
  std::chrono::seconds connect_timeout{60};   // of forming the group
};

// Joins the group and returns once all ranks are connected. `device` is the rank's own and outlives the
// communicator; `store` is used only during the call and may be null if size is 1. DEADLINE_EXCEEDED or
// UNAVAILABLE names the rank if the group does not form in time.
absl::StatusOr<std::unique_ptr<Communicator>> CreateCommunicator(const CommunicatorOptions& options,
                                                                 Device& device, RendezvousStore* store);

}  // namespace foredraft
