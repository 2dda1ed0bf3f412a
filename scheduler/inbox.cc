#include "scheduler/inbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/grouped_digits.h"

namespace foredraft {

absl::Status Inbox::Submit(Request request) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close_reason_.ok()) return close_reason_;
    if (!refusal_.ok()) return refusal_;
    if (requests_here_ + waiting_ >= max_queue_size_) {
      return WithReason(absl::ResourceExhaustedError(
                            absl::StrCat("queue full: ", Grouped(requests_here_ + waiting_),
                                         " requests wait, max_queue_size is ", Grouped(max_queue_size_))),
                        kReasonQueueFull);
    }
    items_.emplace_back(std::move(request));
    ++requests_here_;
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void Inbox::SetMaxQueueSize(int max_queue_size) {
  std::lock_guard<std::mutex> lock(mutex_);
  max_queue_size_ = max_queue_size;
}

bool Inbox::Order(InboxItem order) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!close_reason_.ok()) return false;
    items_.push_back(std::move(order));
  }
  changed_.notify_one();
  return true;
}

std::vector<InboxItem> Inbox::TakeAll(std::chrono::steady_clock::duration timeout) {
  std::unique_lock<std::mutex> lock(mutex_);
  if (timeout.count() > 0) {
    changed_.wait_until(lock, std::chrono::steady_clock::now() + timeout,
                        [this] { return !items_.empty() || !close_reason_.ok(); });
  }
  waiting_ += requests_here_;  // until the next SetWaiting
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

void Inbox::RefuseRequests(absl::Status reason) {
  CHECK(!reason.ok());
  std::lock_guard<std::mutex> lock(mutex_);
  refusal_ = std::move(reason);
}

void Inbox::AcceptRequests() {
  std::lock_guard<std::mutex> lock(mutex_);
  refusal_ = absl::OkStatus();
}

bool Inbox::closed() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return !close_reason_.ok();
}

}  // namespace foredraft
