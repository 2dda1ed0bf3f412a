#ifndef FOREDRAFT_ENGINE_COMM_GLOO_CONNECT_H_
#define FOREDRAFT_ENGINE_COMM_GLOO_CONNECT_H_

// Brings a group of Gloo ranks together: a connection between every two.

#include <memory>

#include "absl/status/statusor.h"
#include "engine/comm/communicator_factory.h"
#include "engine/comm/rendezvous.h"

namespace gloo {
class Context;
}

namespace foredraft {

// INVALID_ARGUMENT for an interface that this host has not; UNAVAILABLE when the ranks do not come together
// within options.connect_timeout.
absl::StatusOr<std::shared_ptr<gloo::Context>> ConnectGloo(const CommunicatorOptions& options,
                                                           RendezvousStore& store);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_COMM_GLOO_CONNECT_H_
