#pragma once

// Makes the masks of one plan on several threads. What is made does not depend on how many there are.
// Owner: Scheduler. Thread: the scheduler's calls Run; each worker waits for jobs.

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace foredraft {

class MaskWorkers {
 public:
  // `thread_count` >= 1 threads work, the caller's included. The others start with the first Run that has use
  // for them.
  explicit MaskWorkers(int thread_count);
  ~MaskWorkers();

  // Calls job(i) for 0 <= i < count, each once, and returns after the last one.
  void Run(int count, const std::function<void(int)>& job);

  double seconds() const { return seconds_; }  // that Run took, in all

 private:
  void Work();
  // Takes jobs until none is left. `lock` holds mutex_.
  void TakeJobs(std::unique_lock<std::mutex>& lock);

  const int thread_count_;
  double seconds_ = 0;
  std::vector<std::thread> threads_;

  std::mutex mutex_;
  std::condition_variable jobs_changed_;
  std::condition_variable all_done_;
  // Guarded by mutex_.
  const std::function<void(int)>* job_ = nullptr;
  int count_ = 0;
  int next_ = 0;
  int done_ = 0;
  bool stops_ = false;
};

}  // namespace foredraft
