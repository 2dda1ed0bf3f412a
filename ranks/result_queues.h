#pragma once

// Results that workers have sent and the scheduler has not collected yet: one queue per rank, in the plans'
// order.
//
// Owner: Leader, one per group, emptied for each life. Thread-safe: gRPC's threads push, the scheduler takes.

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/plan.h"

namespace foredraft {

class ResultQueues {
 public:
  explicit ResultQueues(int rank_count) : queues_(rank_count) {}

  // A new life of the group: the queues are empty and open.
  void Open();

  void Push(int rank, RankResult result);

  // Waits for the rank's next result. DEADLINE_EXCEEDED past `timeout`; after Close the reason, once the
  // results that have arrived are taken.
  absl::StatusOr<RankResult> Take(int rank, std::chrono::milliseconds timeout);

  // The group is over: a Take that finds no result fails with `reason` and does not wait.
  void Close(const absl::Status& reason);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  std::vector<std::deque<RankResult>> queues_;  // [ranks]
  absl::Status reason_;                         // ok while open
};

}  // namespace foredraft
