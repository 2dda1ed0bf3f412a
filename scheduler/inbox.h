#pragma once

// Messages from other threads to the scheduler thread: new requests, cancels, reloaded settings, lost ranks.
// The inbox enforces max_queue_size: it counts the requests that wait, in the inbox or in the scheduler's
// queue, so that Submit refuses at once when the queue is full. (It is not a BoundedQueue, whose bound would
// count cancels, which are never refused, and would not count requests that the scheduler has taken but not
// admitted.) Thread-safe.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "scheduler/policies/speculation.h"
#include "scheduler/request.h"

namespace foredraft {

struct CancelOrder {
  uint64_t request_id = 0;
  FinishReason reason = FinishReason::kCancelled;
};
struct RankLoss {
  absl::Status error;
};
// The executors, which a lost rank has ended, have been started again.
struct RanksRestarted {};
// The executors have ended and will not be started again.
struct RanksGone {
  absl::Status error;
};
using InboxItem = std::variant<Request, CancelOrder, Speculation, RankLoss, RanksRestarted, RanksGone>;

class Inbox {
 public:
  explicit Inbox(int max_queue_size) : max_queue_size_(max_queue_size) {}

  // RESOURCE_EXHAUSTED when max_queue_size requests wait; the reason of RefuseRequests or Close.
  absl::Status Submit(Request request);

  // Changes the bound for later Submits. Requests that already wait are kept.
  void SetMaxQueueSize(int max_queue_size);

  // Queues a message that is not a request. False, and no effect, once closed: all requests end anyway.
  bool Order(InboxItem order);

  // All items in order of arrival. Waits up to `timeout` for the first; returns at once when closed.
  std::vector<InboxItem> TakeAll(std::chrono::steady_clock::duration timeout);

  // Sets how many of the requests taken so far still wait in the scheduler's queue.
  void SetWaiting(int waiting);

  // Submit returns `reason` (not ok) until AcceptRequests. Requests that are here stay.
  void RefuseRequests(absl::Status reason);
  void AcceptRequests();

  // Submit returns `reason` (not ok) for ever. Later reasons are ignored.
  void Close(absl::Status reason);
  bool closed() const;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // Guarded by mutex_.
  int max_queue_size_;
  std::vector<InboxItem> items_;
  int requests_here_ = 0;
  int waiting_ = 0;
  absl::Status refusal_;  // of RefuseRequests
  absl::Status close_reason_;
};

}  // namespace foredraft
