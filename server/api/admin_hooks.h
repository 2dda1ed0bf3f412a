#pragma once

// The server's functions for operators, independent of the wire.

#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/scheduler.h"
#include "server/api/health.h"
#include "server/api/reload.h"

namespace foredraft {

struct ServerLoad {
  SchedulerLoad scheduler;
  int open_calls = 0;
  ServingState state = ServingState::kLoading;
};

// What the daemon does for an operator. The functions are called on gRPC's callback threads; they are
// thread-safe, and none waits for the engine.
struct AdminHooks {
  std::function<std::string()> config_yaml;
  std::function<absl::StatusOr<ReloadReport>()> reload;
  std::function<void()> drain;
};

}  // namespace foredraft
