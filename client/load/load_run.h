#pragma once

// One run of a load: sends the requests of a workload when they are due and measures them.
//
// Closed loop: all requests are due at once, and `concurrency` limits how many are in flight. Open loop:
// requests are due as a Poisson process of `request_rate_per_s`, however long answers take; a concurrency
// limit delays the requests that would exceed it, as in other load generators.
//
// A chat of several turns counts as one in all limits: its next turn is sent when the previous answer is
// complete, and keeps its place in the concurrency. A turn that fails ends the chat.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "client/load/client.h"
#include "client/load/measured_request.h"
#include "client/load/workload.h"

namespace foredraft {

// When requests are due: all at once (a closed loop, where only the concurrency delays them), or as a Poisson
// process. Not thread safe.
class Arrivals {
 public:
  // `rate_per_s` absent = closed loop.
  Arrivals(std::optional<double> rate_per_s, uint64_t seed);

  // When the next request is due, since the start of the run. The first is due at 0.
  double next_s() const { return next_s_; }
  void Advance();

 private:
  const std::optional<double> rate_per_s_;
  const uint64_t seed_;
  uint64_t drawn_ = 0;
  double next_s_ = 0;
};

struct LoadOptions {
  int concurrency = 0;  // 0 = any number
  std::optional<double> request_rate_per_s;
  std::optional<int64_t> request_count;
  std::optional<double> duration_s;  // no request is sent later; those in flight run to their end
  uint64_t seed = 0;                 // of arrival times, and of each request's sampling
  // The fields that all requests share: sampling, drafts, ignore_eos, timeout_s.
  v1::GenerateRequest request;
};

struct LoadResult {
  std::vector<MeasuredRequest> requests;  // in the order of their end
  double wall_s = 0;                      // first request sent to last request ended
  double cpu_s = 0;                       // user and system time of this process in wall_s
  bool open_loop = false;
  bool interrupted = false;
  std::string gave_up;  // why the run stopped early by itself; empty = it did not
};

struct LoadProgress {
  int64_t done = 0;    // items of the workload whose requests have all ended
  int64_t failed = 0;  // requests
  int64_t running = 0;
  int64_t output_tokens = 0;
  double elapsed_s = 0;
};

class LoadRun {
 public:
  LoadRun(BenchClient& client, const Workload& workload, const LoadOptions& options);

  // Call once. Returns when the load has ended, soon after `interrupted` is set (requests in flight are
  // cancelled), or when the daemon is gone. Calls `progress` a few times per second, on this thread.
  LoadResult Run(const std::atomic<bool>& interrupted,
                 const std::function<void(const LoadProgress&)>& progress);

 private:
  struct Departure {
    int64_t index;
    double due_s;
  };

  double Now() const;
  void StartDue();                     // starts all requests that are due. Any thread
  std::optional<Departure> TakeDue();  // under mutex_
  bool HasMore(double now_s) const;    // under mutex_
  void StartOne(const Departure& departure);
  void StartTurn(const TimedCall& before, MeasuredRequest measured);
  void Send(v1::GenerateRequest request, MeasuredRequest measured, bool has_next_turn);
  bool GoesOn(TimedCall& call) const;           // whether the chat's next turn follows; under mutex_
  void Ended(std::shared_ptr<TimedCall> call);  // on a thread of gRPC
  void Stop();                                  // no more requests; cancels those in flight
  LoadProgress Progress() const;

  BenchClient& client_;
  const Workload& workload_;
  const LoadOptions options_;
  std::chrono::steady_clock::time_point start_;
  std::atomic<int64_t> received_tokens_ = 0;

  mutable std::mutex mutex_;
  std::condition_variable changed_;  // nothing is in flight, or the run gave up
  // Guarded by mutex_.
  Arrivals arrivals_;
  std::deque<double> free_since_s_;  // one per request that the concurrency still allows
  int64_t started_ = 0;
  int64_t running_ = 0;
  int64_t failed_ = 0;
  int64_t unavailable_in_a_row_ = 0;
  int64_t inside_ = 0;  // calls in flight and threads in Ended: `this` must outlive them
  bool stopped_ = false;
  bool gave_up_ = false;
  std::unordered_set<std::shared_ptr<TimedCall>> calls_;  // in flight
  std::vector<MeasuredRequest> ended_;
};

}  // namespace foredraft
