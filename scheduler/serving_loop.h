#pragma once

// Runs iterations over a list of executors: Plan, Launch, Collect, Commit (docs/architecture.md section 4).
// Owns the scheduler thread. Submit and Cancel may be called from any thread and never wait for the engine.

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/inbox.h"
#include "scheduler/iteration_trace.h"
#include "scheduler/plan.h"
#include "scheduler/policies/overlap_policy.h"
#include "scheduler/policies/speculation.h"
#include "scheduler/request.h"
#include "scheduler/scheduler.h"
#include "scheduler/wanted_prefills.h"

namespace foredraft {

// One rank's part of an iteration.
struct RankStats {
  int prefill_tokens = 0;
  double prefill_seconds = 0;  // 0 without a prefill
  double decode_seconds = 0;   // 0 without a decode step
};

// One iteration, for the metrics.
struct IterationStats {
  int draft_len = 0;
  int decode_bucket = 0;
  int live_slots = 0;  // over all ranks
  int64_t tokens = 0;  // prompt rows computed and tokens emitted, over all ranks
  bool had_prefill = false;
  double prefill_seconds = 0;  // the slowest rank's
  double decode_seconds = 0;
  bool replayed = false;
  std::vector<RankStats> ranks;
  std::vector<std::pair<std::string, double>> mask_seconds;  // since the last one, by Request::caller
  SchedulerLoad load;                                        // after Commit; its counters are cumulative
};

struct ServingLoopOptions {
  // Launches an iteration before it collects the one in flight, where that gains time (overlap_policy.h).
  // False: never.
  bool overlap = true;
  int max_queue_size = 1024;  // requests that wait
  // With overlap, iteration N + 1 is planned soon after N has begun, and a request that arrives later must
  // wait for N + 2. So while a slot is free and no request waits, the loop delays the plan by a quarter of
  // the last step's time, at most by newcomer_wait.
  std::chrono::steady_clock::duration newcomer_wait = std::chrono::milliseconds(10);
};

class ServingLoop {
 public:
  using StatsSink = std::function<void(const IterationStats&)>;

  // The executors outlive the loop. updates and stats are called on the scheduler thread and must not block;
  // stats may be empty.
  ServingLoop(const ServingLoopOptions& options, std::unique_ptr<Scheduler> scheduler,
              std::vector<Executor*> executors, UpdateSink updates, StatsSink stats);
  ~ServingLoop();  // Stop

  void Start();

  // RESOURCE_EXHAUSTED when the queue is full, UNAVAILABLE when stopped or a rank was lost, INVALID_ARGUMENT
  // when the request is too large (request_size.h).
  absl::Status Submit(Request request);

  // Called by other threads when they notice that a rank failed: the same happens as when a Launch or Collect
  // fails. Health is not ok. New requests are refused, and the present ones end with UNAVAILABLE; with
  // SchedulerOptions::resume both wait, and meanwhile cancels and deadlines end them.
  void ReportLoss(const absl::Status& error);

  // After a loss, once health is not ok: serves again on the same executors, which have been reset.
  void Restart();
  // Instead of Restart: the requests that wait end with `error`.
  void GiveUp(const absl::Status& error);

  // Ends a request with `reason` before the next Plan; unknown or ended ids are ignored. A prefill of which
  // all requests are cancelled is abandoned if the executor can do so.
  void Cancel(uint64_t request_id, FinishReason reason);

  // Takes effect as a whole at the next iteration. K <= max_draft_len.
  void SetSpeculation(const Speculation& speculation);

  // Changes the bound for later Submits; requests that already wait are kept.
  void SetMaxQueueSize(int max_queue_size) { inbox_.SetMaxQueueSize(max_queue_size); }

  // Ends all requests as kCancelled, waits for the iterations in flight, joins the thread. Safe to call
  // twice.
  void Stop();

  // Snapshot as of the last iteration.
  SchedulerLoad load() const;

  // Not ok from the loss of a rank until the loop serves again.
  absl::Status health() const;

  // When the scheduler thread began its last turn, with work or without: at most a second ago when idle, at
  // most a few step timeouts ago otherwise.
  std::chrono::steady_clock::time_point last_turn() const { return last_turn_.load(); }

 private:
  using Clock = std::chrono::steady_clock;

  void Run();
  absl::Status Iterate();
  void TakeInbox();
  Clock::duration InboxWait() const;
  void AcceptAll(std::vector<InboxItem> items);
  void Accept(InboxItem item);
  IterationPlan Plan();
  absl::Status Launch(IterationPlan plan);
  absl::Status CollectAndCommit();
  void MeasureIteration(const std::vector<RankResult>& results, IterationStats* stats);
  void Deliver();
  void LoseRanks(const absl::Status& error);
  void ServeAgain();

  // Constant after construction.
  const ServingLoopOptions options_;
  const RequestSizeLimits request_size_;
  const std::vector<Executor*> executors_;
  const UpdateSink updates_;
  const StatsSink stats_;

  // These have their own locks.
  Inbox inbox_;
  WantedPrefills wanted_prefills_;

  // Scheduler thread only.
  const std::unique_ptr<Scheduler> scheduler_;
  std::deque<IterationPlan> in_flight_;
  bool ending_ = false;             // the inbox was closed, all requests are ended
  bool lost_ = false;               // from the loss of a rank to Restart
  absl::Status reported_loss_;      // by ReportLoss
  Clock::time_point results_time_;  // when the last results arrived, or the first work after an idle time
  double step_seconds_ = 0;         // of the last iteration, without its prefill
  OverlapPolicy overlap_policy_;
  IterationTrace trace_;

  std::atomic<Clock::time_point> last_turn_{};

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  SchedulerLoad load_;
  absl::Status health_;

  std::mutex thread_mutex_;
  std::thread thread_;  // guarded by thread_mutex_
};

}  // namespace foredraft
