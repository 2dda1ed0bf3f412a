#pragma once

// The status of a group of ranks: ok until the first failure, which is kept. Owner: a communicator.
// Thread-safe; failed() is one atomic load, cheap enough for every collective.

#include <atomic>
#include <mutex>

#include "absl/status/status.h"

namespace foredraft {

class GroupStatus {
 public:
  // Keeps the first reason, as UNAVAILABLE, and drops later ones; true for the first. `reason` is not ok.
  bool Fail(const absl::Status& reason);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status status() const;

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  absl::Status reason_;  // guarded by mutex_
};

}  // namespace foredraft
