#ifndef FOREDRAFT_ENGINE_COMM_RENDEZVOUS_H_
#define FOREDRAFT_ENGINE_COMM_RENDEZVOUS_H_

// Where the ranks of a forming group leave their addresses for each other: a few small values, each written
// once. One store per life of the group: a restarted group starts with an empty one.

#include <chrono>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace foredraft {

// Thread: any.
class RendezvousStore {
 public:
  virtual ~RendezvousStore() = default;

  // `value` is bytes. UNAVAILABLE when the store is out of reach.
  virtual absl::Status Set(const std::string& key, const std::string& value) = 0;

  // Waits until some rank has set `key`. DEADLINE_EXCEEDED past `deadline`, UNAVAILABLE when the store is out
  // of reach.
  virtual absl::StatusOr<std::string> Get(const std::string& key,
                                          std::chrono::steady_clock::time_point deadline) = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_COMM_RENDEZVOUS_H_
