#ifndef FOREDRAFT_SCHEDULER_INBOX_H_
#define FOREDRAFT_SCHEDULER_INBOX_H_

// Messages from other threads to the scheduler thread: new requests, cancels, changes of a reload. The inbox
// owns the bound of the queue: it counts the requests that wait, here or in the scheduler's queue, so that
// Submit refuses at once when the queue is full. (Not a BoundedQueue: its bound would count cancels, which
// are never refused, and would not count requests that the scheduler has taken but not admitted.)
// Thread-safe.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/request.h"
#include "scheduler/speculation.h"

namespace foredraft {

struct CancelOrder {
  uint64_t request_id = 0;
  FinishReason reason = FinishReason::kCancelled;
};
struct RankLoss {
  absl::Status error;
};
using InboxItem = std::variant<Request, CancelOrder, Speculation, RankLoss>;

class Inbox {
 public:
  explicit Inbox(int max_queue_size) : max_queue_size_(max_queue_size) {}

  // RESOURCE_EXHAUSTED when max_queue_size requests wait; the reason of Close once closed.
  absl::Status Submit(Request request);

  // The bound of later Submits. Requests that wait already stay.
  void SetMaxQueueSize(int max_queue_size);

  // Dropped once closed: all requests end then anyway.
  void Order(InboxItem order);

  // All items in order of arrival. Waits up to `timeout` for the first; returns at once when closed.
  std::vector<InboxItem> TakeAll(std::chrono::steady_clock::duration timeout);

  // How many of the requests taken so far still wait in the scheduler's queue.
  void SetWaiting(int waiting);

  // Submit returns `reason` (not ok) from now on. Later reasons are ignored.
  void Close(absl::Status reason);
  // Empties and opens the inbox again. The bound stays.
  void Reopen();
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  int max_queue_size_;
  std::vector<InboxItem> items_;
  int requests_here_ = 0;
  int waiting_ = 0;
  absl::Status close_reason_;
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_INBOX_H_
