#ifndef FOREDRAFT_SCHEDULER_INBOX_H_
#define FOREDRAFT_SCHEDULER_INBOX_H_

// What other threads ask of the scheduler thread: new requests, cancels, a reload's changes. Counts the
// requests that wait, here or in the scheduler's queue, so that a full queue is refused at once, without
// asking the scheduler thread. Not a BoundedQueue, whose bound would count cancels (never refused) and forget
// requests already taken over. Thread-safe.

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
struct DraftLenOrder {
  int draft_len = 0;
};
struct QueueSizeOrder {
  int max_queue_size = 0;
};
struct RankLoss {
  absl::Status error;
};
using InboxItem = std::variant<Request, CancelOrder, Speculation, DraftLenOrder, QueueSizeOrder, RankLoss>;

class Inbox {
 public:
  explicit Inbox(int max_queue_size) : max_queue_size_(max_queue_size) {}

  // RESOURCE_EXHAUSTED when max_queue_size requests wait; the reason of Close once closed.
  absl::Status Submit(Request request);

  // Bounds Submit from now on. The scheduler hears of it in order: what was accepted before, it takes.
  void SetMaxQueueSize(int max_queue_size);

  // Dropped once closed: all requests end then anyway.
  void Order(InboxItem order);

  // All items in order of arrival. Waits up to `timeout` for the first; returns at once when closed.
  std::vector<InboxItem> TakeAll(std::chrono::steady_clock::duration timeout);

  // How many of the requests taken so far still wait in the scheduler's queue.
  void SetWaiting(int waiting);

  // Submit answers `reason` (not ok) from now on. The first reason stays.
  void Close(absl::Status reason);
  // As new, but for the bound. Nothing that came before is left.
  void Reopen();
  bool closed() const;
  absl::Status close_reason() const;

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
