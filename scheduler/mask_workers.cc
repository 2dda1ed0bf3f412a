#include "scheduler/mask_workers.h"

#include <pthread.h>

#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

constexpr std::chrono::hours kIdleWait(1);  // every wait has a deadline; Run ends this one at once

}  // namespace

MaskWorkers::MaskWorkers(int thread_count) : thread_count_(thread_count) { CHECK_GE(thread_count, 1); }

MaskWorkers::~MaskWorkers() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stops_ = true;
  }
  jobs_changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void MaskWorkers::Run(int count, const std::function<void(int)>& job) {
  if (count == 0) return;
  const auto start = std::chrono::steady_clock::now();
  while (count > 1 && static_cast<int>(threads_.size()) + 1 < thread_count_) {
    threads_.emplace_back([this, number = threads_.size() + 1] {
      pthread_setname_np(pthread_self(), absl::StrCat("masks-", number).c_str());
      Work();
    });
  }
  std::unique_lock<std::mutex> lock(mutex_);
  job_ = &job;
  count_ = count;
  next_ = done_ = 0;
  if (count > 1) jobs_changed_.notify_all();
  TakeJobs(lock);
  while (!all_done_.wait_for(lock, kIdleWait, [this] { return done_ == count_; })) {
  }
  job_ = nullptr;
  seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void MaskWorkers::TakeJobs(std::unique_lock<std::mutex>& lock) {
  while (job_ != nullptr && next_ < count_) {
    const std::function<void(int)>& job = *job_;
    const int index = next_++;
    lock.unlock();
    job(index);
    lock.lock();
    if (++done_ == count_) all_done_.notify_all();
  }
}

void MaskWorkers::Work() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!stops_) {
    TakeJobs(lock);
    jobs_changed_.wait_for(lock, kIdleWait, [this] { return stops_ || (job_ != nullptr && next_ < count_); });
  }
}

}  // namespace foredraft
