#include "ranks/result_queues.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace foredraft {

void ResultQueues::Open() {
  std::lock_guard<std::mutex> lock(mutex_);
  for (std::deque<RankResult>& queue : queues_) queue.clear();
  reason_ = absl::OkStatus();
}

void ResultQueues::Push(int rank, RankResult result) {
  std::lock_guard<std::mutex> lock(mutex_);
  queues_[rank].push_back(std::move(result));
  changed_.notify_all();
}

absl::StatusOr<RankResult> ResultQueues::Take(int rank, std::chrono::milliseconds timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  std::deque<RankResult>& queue = queues_[rank];
  changed_.wait_for(lock, timeout, [this, &queue] { return !queue.empty() || !reason_.ok(); });
  if (!queue.empty()) {
    RankResult result = std::move(queue.front());
    queue.pop_front();
    return result;
  }
  if (!reason_.ok()) return reason_;
  return absl::DeadlineExceededError(
      absl::StrFormat("no result within %.1f s", std::chrono::duration<double>(timeout).count()));
}

void ResultQueues::Close(const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  reason_ = reason;
  changed_.notify_all();
}

}  // namespace foredraft
