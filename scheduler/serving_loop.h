#ifndef FOREDRAFT_SCHEDULER_SERVING_LOOP_H_
#define FOREDRAFT_SCHEDULER_SERVING_LOOP_H_

// Keeps one iteration in flight over a list of executors: Plan, Launch, Collect, Commit (docs/architecture.md
// section 4). Owns the scheduler thread. Submit and Cancel may be called from any thread and never block on
// the engine.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/inbox.h"
#include "scheduler/plan.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/speculation.h"

namespace foredraft {

// What the loop tells the metrics after each iteration. Plain figures, no registry.
struct IterationFigures {
  int draft_len = 0;
  int decode_bucket = 0;
  int live_slots = 0;  // over all ranks
  bool had_prefill = false;
  double prefill_seconds = 0;  // the slowest rank's
  double decode_seconds = 0;
  bool replayed = false;
  SchedulerLoad load;  // after Commit; its counters are cumulative
};

struct ServingLoopOptions {
  bool overlap = true;
  // With overlap the next plan is made as soon as the one in flight has begun, so that a request that comes a
  // moment later would be an iteration late. While a slot is free and nobody waits for it, the loop gives
  // such a request a quarter of the last step's time, and no more than this.
  std::chrono::steady_clock::duration newcomer_wait = std::chrono::milliseconds(10);
};

class ServingLoop {
 public:
  using FiguresSink = std::function<void(const IterationFigures&)>;

  // The executors outlive the loop. updates and figures are called on the scheduler thread and must not
  // block; figures may be empty.
  ServingLoop(const ServingLoopOptions& options, std::unique_ptr<Scheduler> scheduler,
              std::vector<Executor*> executors, UpdateSink updates, FiguresSink figures);
  ~ServingLoop();  // Stop

  void Start();

  // RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE when stopped or a rank was lost, INVALID_ARGUMENT
  // when the request can never fit the pool.
  absl::Status Submit(Request request);

  // A rank was lost, as somebody saw who was not waiting for a result: all requests end, as when a Launch or
  // Collect fails.
  void ReportLoss(const absl::Status& error);

  // After a loss: serves again, on the same executors, which are bare again. The counters go on.
  void Restart(std::unique_ptr<Scheduler> scheduler);

  // Asks the loop to end a request with `reason` before the next Plan; unknown or ended ids are ignored.
  void Cancel(uint64_t request_id, FinishReason reason);

  // Take effect at the next iteration, all of it at once. K <= max_draft_len. SetDraftLen changes K alone.
  void SetSpeculation(const Speculation& speculation);
  void SetDraftLen(int draft_len);

  // Bounds Submit from now on; requests that wait already go on waiting.
  void SetMaxQueueSize(int max_queue_size) { inbox_.SetMaxQueueSize(max_queue_size); }

  // Ends all requests as kCancelled, waits for the iteration in flight, joins the thread. Safe to call twice.
  void Stop();

  // Snapshot as of the last iteration.
  SchedulerLoad load() const;

  // Not ok once a rank was lost: nothing will be served any more.
  absl::Status health() const;

 private:
  void Run();
  void TakeInbox();
  std::chrono::steady_clock::duration InboxWait() const;
  void Accept(InboxItem* item);
  absl::Status Launch(const IterationPlan& plan);
  absl::Status CollectAndCommit();
  IterationFigures FiguresOfOldest(const std::vector<RankResult>& results);
  void Deliver();
  void LoseRank(const absl::Status& error);

  // What the figures say of a plan in flight.
  struct LaunchedFigures {
    int draft_len = 0;
    int decode_bucket = 0;
    int live_slots = 0;
    bool had_prefill = false;
  };

  // Constant after construction.
  const ServingLoopOptions options_;
  const std::vector<Executor*> executors_;
  const UpdateSink updates_;
  const FiguresSink figures_;

  // Own lock.
  Inbox inbox_;

  // Scheduler thread only, but for CheckRequest, which reads what is constant.
  std::unique_ptr<Scheduler> scheduler_;  // replaced under mutex_ while there is no such thread
  std::deque<LaunchedFigures> in_flight_;
  double last_step_seconds_ = 0;  // of the last decode step committed
  bool ending_ = false;           // the inbox was closed, all requests are ended
  absl::Status reported_loss_;    // by ReportLoss

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  SchedulerLoad load_;
  absl::Status health_;

  std::mutex thread_mutex_;
  std::thread thread_;  // guarded by thread_mutex_
};

}  // namespace foredraft

#endif  // FOREDRAFT_SCHEDULER_SERVING_LOOP_H_
