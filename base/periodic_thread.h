#pragma once

// Runs jobs on a thread of its own, each once per period, until destroyed. A job that takes long delays the
// others.

#include <pthread.h>

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/out_of_memory.h"

namespace foredraft {

class PeriodicThread {
 public:
  struct Job {
    std::chrono::steady_clock::duration period;  // also from the start to the first run
    std::function<void()> run;
  };

  // `name` is the thread's, up to 15 letters.
  PeriodicThread(const char* name, std::vector<Job> jobs) : jobs_(std::move(jobs)) {
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), name);
  }
  ~PeriodicThread() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }

 private:
  using Clock = std::chrono::steady_clock;

  void Run() {
    const MustHaveMemory scope;
    std::vector<Clock::time_point> due;
    for (const Job& job : jobs_) due.push_back(Clock::now() + job.period);
    while (true) {
      size_t next = 0;
      for (size_t i = 1; i < due.size(); ++i) {
        if (due[i] < due[next]) next = i;
      }
      {
        std::unique_lock<std::mutex> lock(mutex_);
        if (changed_.wait_until(lock, due[next], [this] { return ended_; })) return;
      }
      jobs_[next].run();
      due[next] = Clock::now() + jobs_[next].period;
    }
  }

  const std::vector<Job> jobs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ended_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace foredraft
