#pragma once

// Whether the server accepts requests, for clients (a status) and for probes (grpc.health.v1). Thread-safe.
//
// clang-format off
// | state | probes | requests | next |
// |---|---|---|---|
// | loading | NOT_SERVING | UNAVAILABLE | serving, draining |
// | serving | SERVING | accepted | draining, failed |
// | draining | NOT_SERVING | UNAVAILABLE | - |
// | failed (a rank was lost) | NOT_SERVING | UNAVAILABLE | serving (restart: group), draining |
// clang-format on

#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "server/api/health_service.h"

namespace foredraft {

enum class ServingState { kLoading, kServing, kDraining, kFailed };

const char* ServingStateName(ServingState state);

class Health {
 public:
  // Reports to these services from now on, until it is called with none. They outlive the reports.
  void Attach(std::vector<HealthService*> services);
  // Transitions that the table does not have are ignored: a drain during loading stays a drain.
  void Enter(ServingState state);

  ServingState state() const;
  // Ok while serving; otherwise UNAVAILABLE with the reason.
  absl::Status Admits() const;

 private:
  void Report();  // the caller holds mutex_

  mutable std::mutex mutex_;
  ServingState state_ = ServingState::kLoading;  // guarded by mutex_
  std::vector<HealthService*> services_;         // guarded by mutex_
};

}  // namespace foredraft
