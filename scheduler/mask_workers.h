#pragma once

// The threads that make masks, in short jobs, for which a plan waits, and in long ones, for which it does
// not. Owner: Scheduler. Thread: only the scheduler's makes calls; each worker waits for jobs.

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "scheduler/mask_job.h"

namespace foredraft {

class MaskWorkers {
 public:
  // thread_count: how many threads run jobs, the caller's included, at least 1. With 1, a worker still runs
  // long jobs. Workers start with the first call that needs them.
  explicit MaskWorkers(int thread_count);
  ~MaskWorkers();  // waits for the jobs that run, and drops the others

  // Calls job(i) for 0 <= i < count, each once, and returns after the last one.
  void Run(int count, const std::function<void(int)>& job);

  // Runs the job to its end on a worker. Jobs with a smaller `owed` run first, but each later job counts as
  // owing a fixed amount more, so no job waits for ever.
  void Later(std::shared_ptr<MaskJob> job, int64_t owed);
  // Returns when one more job of Later has ended, or none is left. If one has not begun, the caller runs it.
  void FinishOne();

 private:
  void StartThreads(int count);
  void Work();
  // Takes jobs until none is left. `lock` holds mutex_.
  void TakeJobs(std::unique_lock<std::mutex>& lock);
  void TakeLongJob(std::unique_lock<std::mutex>& lock);

  const int thread_count_;
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable jobs_changed_;
  std::condition_variable all_done_;
  std::condition_variable long_done_;
  // Guarded by mutex_.
  const std::function<void(int)>* job_ = nullptr;
  int count_ = 0;
  int next_ = 0;
  int done_ = 0;
  std::multimap<int64_t, std::shared_ptr<MaskJob>> long_jobs_;  // the smaller key first
  int64_t long_number_ = 0;
  int long_running_ = 0;
  int64_t long_ended_ = 0;
  bool stops_ = false;
};

}  // namespace foredraft
