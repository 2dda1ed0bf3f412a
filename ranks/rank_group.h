#pragma once

// The ranks behind a daemon: one rank in this process (local_rank), or worker processes (worker_group). The
// daemon uses both in the same way.
//
// Life: Start, then the executors serve until Stop or until a rank is lost; then Abort, after which Start may
// begin a new life. Thread: the daemon's owner; health may be called by any thread, the executors belong to
// the scheduler's.

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "ranks/start_observer.h"
#include "scheduler/plan.h"

namespace foredraft {

class RankGroup {
 public:
  virtual ~RankGroup() = default;

  // Returns once all ranks are ready, or CANCELLED soon after `cancelled` returns true.
  virtual absl::Status Start(StartObserver& observer, const std::function<bool()>& cancelled) = 0;
  virtual const RankGroupSummary& summary() const = 0;
  // A restarted group has the same executors.
  virtual std::vector<Executor*> executors() const = 0;
  // Not ok once a rank is lost, even if no result is awaited.
  virtual absl::Status health() const = 0;
  // Ends all ranks in order, with no plan in flight. No process of the group is left running.
  virtual void Stop() = 0;
  // Ends all ranks at once. No process of the group is left running.
  virtual void Abort(const absl::Status& reason) = 0;
  // Reads again the files that say who may be a rank. Any thread, once Start has returned.
  virtual void ReloadFiles() {}
};

}  // namespace foredraft
