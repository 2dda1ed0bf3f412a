#include "server/http/worker_pool.h"

#include <pthread.h>

#include <chrono>
#include <optional>

namespace foredraft {

WorkerPool::WorkerPool(const char* name, int threads, size_t capacity) : jobs_(capacity) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), name);
  }
}

WorkerPool::~WorkerPool() { Stop(); }

void WorkerPool::Stop() {
  jobs_.Close();
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

void WorkerPool::Run() {
  while (true) {
    std::optional<std::function<void()>> job = jobs_.Pop(std::chrono::hours(1));
    if (job.has_value()) {
      (*job)();
    } else if (jobs_.closed()) {
      return;
    }
  }
}

}  // namespace foredraft
