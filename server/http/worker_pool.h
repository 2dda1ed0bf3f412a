#pragma once

// A few threads for what takes longer than the threads that move bytes may be held: reading JSON, tokenizing.

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/bounded_queue.h"

namespace foredraft {

class WorkerPool {
 public:
  // `name` is the threads', up to 15 letters.
  WorkerPool(const char* name, int threads, size_t capacity);
  ~WorkerPool();  // Stop

  // False: too many jobs wait already, or the pool has stopped.
  bool Post(std::function<void()> job) { return jobs_.TryPush(std::move(job)); }
  // Runs the jobs that wait, then joins the threads. Safe to call twice.
  void Stop();

 private:
  void Run();

  BoundedQueue<std::function<void()>> jobs_;
  std::vector<std::thread> threads_;
};

}  // namespace foredraft
