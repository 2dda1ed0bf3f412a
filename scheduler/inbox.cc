#include "scheduler/inbox.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"

namespace foredraft {

absl::Status Inbox::Submit(Request request) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close_reason_.ok()) return close_reason_;
    if (requests_here_ + waiting_ >= max_queue_size_) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "queue full: %d requests wait, max_queue_size is %d", requests_here_ + waiting_, max_queue_size_));
    }
    items_.emplace_back(std::move(request));
    ++requests_here_;
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void Inbox::SetMaxQueueSize(int max_queue_size) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close_reason_.ok()) return;
    max_queue_size_ = max_queue_size;
    items_.emplace_back(QueueSizeOrder{.max_queue_size = max_queue_size});
  }
  changed_.notify_one();
}

void Inbox::Order(InboxItem order) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close_reason_.ok()) return;
    items_.push_back(std::move(order));
  }
  changed_.notify_one();
}

std::vector<InboxItem> Inbox::TakeAll(std::chrono::steady_clock::duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (timeout.count() > 0) {
    changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout,
                        [this] { return !items_.empty() || !close_reason_.ok(); });
  }
  waiting_ += requests_here_;  // until SetWaiting knows better
  requests_here_ = 0;
  return std::exchange(items_, {});
}

void Inbox::SetWaiting(int waiting) {
  std::lock_guard<std::mutex> lock(mutex_);
  waiting_ = waiting;
}

void Inbox::Close(absl::Status reason) {
  CHECK(!reason.ok());
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close_reason_.ok()) return;
    close_reason_ = std::move(reason);
  }
  changed_.notify_all();
}

void Inbox::Reopen() {
  std::lock_guard<std::mutex> lock(mutex_);
  close_reason_ = absl::OkStatus();
  items_ = {QueueSizeOrder{.max_queue_size = max_queue_size_}};
  requests_here_ = 0;
  waiting_ = 0;
}

bool Inbox::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !close_reason_.ok();
}

absl::Status Inbox::close_reason() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return close_reason_;
}

}  // namespace foredraft
