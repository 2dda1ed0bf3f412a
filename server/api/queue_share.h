#pragma once

// Keeps one client from filling the queue: counts each client's requests that have no token yet.
// Thread-safe.

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "absl/status/statusor.h"

namespace foredraft {

class QueueShare {
 public:
  // A request's place; destroying the last copy gives it back.
  using Place = std::shared_ptr<const void>;

  // RESOURCE_EXHAUSTED: `client` has `max` places. They may outlive this object.
  absl::StatusOr<Place> Take(const std::string& client, int max);

 private:
  struct Counts {
    std::mutex mutex;
    std::map<std::string, int> taken;  // guarded by mutex; no entry is 0
  };
  const std::shared_ptr<Counts> counts_ = std::make_shared<Counts>();
};

// Who `peer` (grpc::ServerContextBase::peer) is, without the port: "ipv4:10.0.0.7".
std::string ClientOf(const std::string& peer);

}  // namespace foredraft
