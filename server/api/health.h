#ifndef FOREDRAFT_SERVER_API_HEALTH_H_
#define FOREDRAFT_SERVER_API_HEALTH_H_

// Whether requests are taken, for clients (a status) and for probes (grpc.health.v1). Thread-safe.
//
// | state | probes | requests | next |
// |---|---|---|---|
// | loading | NOT_SERVING | UNAVAILABLE | serving, draining |
// | serving | SERVING | taken | draining, failed |
// | draining | NOT_SERVING | UNAVAILABLE | - |
// | failed (a rank was lost) | NOT_SERVING | UNAVAILABLE | serving (restart: group), draining |

#include <grpcpp/server.h>

#include <mutex>

#include "absl/status/status.h"

namespace foredraft {

enum class ServingState { kLoading, kServing, kDraining, kFailed };

const char* ServingStateName(ServingState state);

class Health {
 public:
  // Reports to the server's health service from now on; the server outlives the reports. Null: no more.
  void Attach(grpc::Server* server);
  // Moves that the table does not have are ignored: a drain while loading stays a drain.
  void Enter(ServingState state);

  ServingState state() const;
  // Ok while serving, else UNAVAILABLE with the reason.
  absl::Status Admits() const;

 private:
  void Report();  // holds mutex_

  mutable std::mutex mutex_;
  ServingState state_ = ServingState::kLoading;  // guarded by mutex_
  grpc::Server* server_ = nullptr;               // guarded by mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_SERVER_API_HEALTH_H_
