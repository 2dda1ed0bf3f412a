#include "server/api/tokenizer_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/grouped_digits.h"

namespace foredraft {

TokenizerPool::~TokenizerPool() {
  Close(absl::UnavailableError("stopped"));
  for (std::thread& thread : threads_) thread.join();
}

void TokenizerPool::Start(int threads) {
  CHECK(threads_.empty());
  CHECK_GT(threads, 0);
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), absl::StrCat("tokenize-", i + 1).c_str());
  }
}

absl::Status TokenizerPool::Add(const std::string& client, int max_waiting, Job job) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (waiting_ >= max_waiting) {
      return WithReason(absl::ResourceExhaustedError(absl::StrCat(
                            "queue full: ", Grouped(waiting_),
                            " long inputs wait to be tokenized, max_queue_size is ", max_waiting)),
                        kReasonQueueFull);
    }
    const auto [found, is_new] = by_client_.try_emplace(client);
    if (is_new) found->second = turns_.insert(turns_.end(), Turn{.client = client, .jobs = {}});
    found->second->jobs.push_back(std::move(job));
    ++waiting_;
  }
  changed_.notify_one();
  return absl::OkStatus();
}

void TokenizerPool::Close(const absl::Status& reason) {
  CHECK(!reason.ok());
  std::list<Turn> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_.ok()) closed_ = reason;
    ended.swap(turns_);
    by_client_.clear();
    waiting_ = 0;
  }
  changed_.notify_all();
  for (const Turn& turn : ended) {
    for (const Job& job : turn.jobs) job(reason);
  }
}

void TokenizerPool::Run() {
  constexpr int kNice = 5;
  setpriority(PRIO_PROCESS, 0, kNice);  // on Linux of this thread alone
  while (const Job job = TakeJob()) job(absl::OkStatus());
}

TokenizerPool::Job TokenizerPool::TakeJob() {
  constexpr std::chrono::hours kWait(1);  // repeated
  std::unique_lock<std::mutex> lock(mutex_);
  while (turns_.empty()) {
    if (!closed_.ok()) return nullptr;
    changed_.wait_for(lock, kWait);
  }
  const auto turn = turns_.begin();
  Job job = std::move(turn->jobs.front());
  turn->jobs.pop_front();
  --waiting_;
  if (turn->jobs.empty()) {
    by_client_.erase(turn->client);
    turns_.erase(turn);
  } else {
    turns_.splice(turns_.end(), turns_, turn);
  }
  return job;
}

}  // namespace foredraft
