#include "base/turn_pool.h"

#include <pthread.h>
#include <sys/resource.h>

#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/error_reason.h"
#include "base/grouped_digits.h"
#include "base/out_of_memory.h"

namespace foredraft {

void TurnPool::Queue::Push(const std::string& client, Job job) {
  const auto [found, is_new] = by_client.try_emplace(client);
  if (is_new) found->second = turns.insert(turns.end(), Turn{.client = client, .jobs = {}});
  found->second->jobs.push_back(std::move(job));
}

TurnPool::Job TurnPool::Queue::Pop() {
  const auto turn = turns.begin();
  Job job = std::move(turn->jobs.front());
  turn->jobs.pop_front();
  if (turn->jobs.empty()) {
    by_client.erase(turn->client);
    turns.erase(turn);
  } else {
    turns.splice(turns.end(), turns, turn);
  }
  return job;
}

TurnPool::~TurnPool() { Stop(); }

void TurnPool::Start(const Options& options) {
  CHECK(threads_.empty());
  CHECK_GT(options.threads, 0);
  options_ = options;
  for (int i = 0; i < options.threads; ++i) {
    StartThread(options.nice, /*takes_long=*/true, /*takes_short=*/options.short_threads == 0);
  }
  for (int i = 0; i < options.short_threads; ++i) {
    StartThread(/*nice=*/0, /*takes_long=*/false, /*takes_short=*/true);
  }
}

void TurnPool::StartThread(int nice, bool takes_long, bool takes_short) {
  threads_.emplace_back([=, this] {
    if (nice != 0) setpriority(PRIO_PROCESS, 0, nice);  // Linux changes this thread alone
    Run(takes_long, takes_short);
  });
  pthread_setname_np(threads_.back().native_handle(),
                     absl::StrCat(options_.thread_name, "-", threads_.size()).c_str());
}

absl::Status TurnPool::Add(const std::string& client, Size size, int max_waiting, Job job) {
  const MustHaveMemory scope;  // a failed allocation could leave a turn without a job
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!closed_.ok()) return closed_;
    if (waiting_ >= max_waiting) {
      return WithReason(absl::ResourceExhaustedError(
                            absl::StrCat("queue full: ", Grouped(waiting_), options_.waiting, max_waiting)),
                        kReasonQueueFull);
    }
    (size == Size::kLong ? long_ : short_).Push(client, std::move(job));
    ++waiting_;
  }
  changed_.notify_all();  // not every thread takes every job
  return absl::OkStatus();
}

void TurnPool::Close(const absl::Status& reason) {
  CHECK(!reason.ok());
  std::list<Turn> ended;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (closed_.ok()) closed_ = reason;
    for (Queue* queue : {&short_, &long_}) {
      ended.splice(ended.end(), queue->turns);
      queue->by_client.clear();
    }
    waiting_ = 0;
  }
  changed_.notify_all();
  for (const Turn& turn : ended) {
    for (const Job& job : turn.jobs) job(reason);
  }
}

void TurnPool::Stop() {
  Close(absl::UnavailableError("stopped"));
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void TurnPool::Run(bool takes_long, bool takes_short) {
  const MustHaveMemory scope;  // a job's own work opens its own scope
  while (const Job job = TakeJob(takes_long, takes_short)) job(absl::OkStatus());
}

TurnPool::Job TurnPool::TakeJob(bool takes_long, bool takes_short) {
  constexpr std::chrono::hours kWait(1);  // repeated
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    for (Queue* queue : {&short_, &long_}) {
      if (!(queue == &long_ ? takes_long : takes_short) || queue->turns.empty()) continue;
      --waiting_;
      return queue->Pop();
    }
    if (!closed_.ok()) return nullptr;
    changed_.wait_for(lock, kWait);
  }
}

}  // namespace foredraft
