#include "scheduler/mask_workers.h"

#include <pthread.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

constexpr std::chrono::hours kIdleWait(1);  // every wait has a deadline; a job ends this one at once
constexpr int64_t kStepsPerNumber = 1'000;  // owed steps that one place earlier in the queue outweighs

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

void MaskWorkers::StartThreads(int count) {
  while (static_cast<int>(threads_.size()) < count) {
    threads_.emplace_back([this, number = threads_.size() + 1] {
      pthread_setname_np(pthread_self(), absl::StrCat("masks-", number).c_str());
      Work();
    });
  }
}

void MaskWorkers::Run(int count, const std::function<void(int)>& job) {
  if (count == 0) return;
  if (count > 1) StartThreads(thread_count_ - 1);
  std::unique_lock<std::mutex> lock(mutex_);
  job_ = &job;
  count_ = count;
  next_ = done_ = 0;
  if (count > 1) jobs_changed_.notify_all();
  TakeJobs(lock);
  while (!all_done_.wait_for(lock, kIdleWait, [this] { return done_ == count_; })) {
  }
  job_ = nullptr;
}

void MaskWorkers::Later(std::shared_ptr<MaskJob> job, int64_t owed) {
  StartThreads(std::max(1, thread_count_ - 1));
  job->is_queued_ = true;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    long_jobs_.emplace(owed + kStepsPerNumber * long_number_++, std::move(job));
  }
  jobs_changed_.notify_one();
}

void MaskWorkers::FinishOne() {
  std::unique_lock<std::mutex> lock(mutex_);
  if (!long_jobs_.empty()) return TakeLongJob(lock);
  const int64_t ended = long_ended_;
  while (!long_done_.wait_for(lock, kIdleWait, [&] { return long_ended_ > ended || long_running_ == 0; })) {
  }
}

void MaskWorkers::TakeLongJob(std::unique_lock<std::mutex>& lock) {
  const std::shared_ptr<MaskJob> job = std::move(long_jobs_.begin()->second);
  long_jobs_.erase(long_jobs_.begin());
  ++long_running_;
  lock.unlock();
  CHECK(job->Run(MaskWork::kNoEnd, /*waits=*/true)) << "it may take as long as it likes";
  lock.lock();
  --long_running_;
  ++long_ended_;
  long_done_.notify_all();
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
  const auto has_short_job = [this] { return job_ != nullptr && next_ < count_; };
  while (!stops_) {
    if (has_short_job()) {
      TakeJobs(lock);
    } else if (!long_jobs_.empty()) {
      TakeLongJob(lock);
    } else {
      jobs_changed_.wait_for(lock, kIdleWait,
                             [&] { return stops_ || has_short_job() || !long_jobs_.empty(); });
    }
  }
}

}  // namespace foredraft
