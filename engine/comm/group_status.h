#ifndef FOREDRAFT_ENGINE_COMM_GROUP_STATUS_H_
#define FOREDRAFT_ENGINE_COMM_GROUP_STATUS_H_

// What became of a group of ranks: fine until the first failure, which stays. Thread-safe; failed() costs a
// load, so that every collective can ask.

#include <atomic>
#include <mutex>

#include "absl/status/status.h"

namespace foredraft {

class GroupStatus {
 public:
  // True for the first reason, which is kept; later ones are dropped. `reason` is not ok.
  bool Fail(const absl::Status& reason);

  bool failed() const { return failed_.load(std::memory_order_acquire); }
  absl::Status status() const;

 private:
  std::atomic<bool> failed_{false};
  mutable std::mutex mutex_;
  absl::Status reason_;  // guarded by mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_COMM_GROUP_STATUS_H_
