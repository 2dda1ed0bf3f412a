#include "kernels/cpu/device/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr int kUnitBits = 20;
constexpr uint64_t kUnitMask = (uint64_t{1} << kUnitBits) - 1;
constexpr int kSpinLimit = 4000;  // pauses: some 50 us

// In scalar operations, about 3 per nanosecond. If threads spin, taking a unit costs about 50 ns and starting
// a job about 500 ns; if they park, waking them costs more than 10 us.
constexpr int64_t kUnitCost = 1 << 13;
constexpr int64_t kParkedUnitCost = 1 << 15;

// What a divided job must save its caller: 5 us. Less than that is lost again, because a worker that spins
// between jobs keeps its core from the threads that pass on the tokens.
constexpr double kLeastSaved = 1 << 14;

bool SavesEnough(int64_t count, int64_t item_cost, int64_t threads) {
  const double cost = static_cast<double>(count) * static_cast<double>(item_cost);
  return cost - cost / static_cast<double>(threads) >= kLeastSaved;
}

uint64_t MakeShare(uint64_t generation, uint64_t first, uint64_t end) {
  return generation << (2 * kUnitBits) | first << kUnitBits | end;
}
uint64_t FirstUnit(uint64_t share) { return share >> kUnitBits & kUnitMask; }
uint64_t EndUnit(uint64_t share) { return share & kUnitMask; }

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

std::vector<int> AllowedCores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cores;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cores;
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) cores.push_back(core);
  }
  return cores;
}

void PinTo(pthread_t thread, int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  pthread_setaffinity_np(thread, sizeof(set), &set);  // best effort
}

void EndThreads(std::vector<std::thread>& threads, std::atomic<bool>& ending, std::mutex& mutex,
                std::condition_variable& published) {
  ending.store(true);
  {
    std::lock_guard<std::mutex> lock(mutex);
    published.notify_all();
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin, int pools)
    : spin_limit_(threads * pools <= static_cast<int>(AllowedCores().size()) ? kSpinLimit : 0),
      pinned_(pin && pools == 1 && threads <= static_cast<int>(AllowedCores().size())),
      caller_core_(AllowedCores().empty() ? -1 : AllowedCores().front()),
      shares_(std::max(threads, 1)) {
  CHECK_GE(threads, 1);
  const std::vector<int> cores = AllowedCores();
  for (int index = 1; index < threads; ++index) {
    try {
      workers_.emplace_back([this, index] { WorkerLoop(index); });
    } catch (const std::system_error&) {
      EndThreads(workers_, ending_, park_mutex_, job_published_);
      throw;
    }
    if (pinned_) PinTo(workers_.back().native_handle(), cores[index]);
  }
}

ThreadPool::~ThreadPool() { EndThreads(workers_, ending_, park_mutex_, job_published_); }

void ThreadPool::PinCaller() {
  if (pinned_ && !workers_.empty()) PinTo(pthread_self(), caller_core_);
}

void ThreadPool::Run(int64_t count, int64_t item_cost, RangeFn fn, const void* context) {
  if (count <= 0) return;
  const int64_t threads = thread_count();
  const int64_t unit_cost = spins() ? kUnitCost : kParkedUnitCost;
  const int64_t unit =
      std::max({int64_t{1}, unit_cost / std::max<int64_t>(1, item_cost),
                (count + static_cast<int64_t>(kUnitMask) - 1) / static_cast<int64_t>(kUnitMask)});
  const int64_t units = (count + unit - 1) / unit;
  if (threads == 1 || units == 1 || !SavesEnough(count, item_cost, threads)) {
    fn(context, 0, count);
    return;
  }
  std::lock_guard<std::mutex> one_job(run_mutex_);
  job_ = {fn, context, count, unit};
  pending_units_.store(units, std::memory_order_relaxed);
  const uint64_t generation = generation_.load(std::memory_order_relaxed) + 1;
  for (int64_t thread = 0; thread < threads; ++thread) {
    shares_[thread].left.store(
        MakeShare(generation, units * thread / threads, units * (thread + 1) / threads),
        std::memory_order_release);
  }
  generation_.store(generation);
  if (parked_workers_.load() > 0) {
    std::lock_guard<std::mutex> lock(park_mutex_);
    job_published_.notify_all();
  }
  RunUnits(0);
  WaitUntilDone();
}

void ThreadPool::RunUnits(int thread) {
  const int threads = static_cast<int>(shares_.size());
  RunShare(shares_[thread], /*from_front=*/true);
  for (int other = thread + 1; other < thread + threads; ++other) {
    RunShare(shares_[other % threads], /*from_front=*/false);
  }
}

void ThreadPool::RunShare(Share& share, bool from_front) {
  int64_t done = 0;
  Job job{};
  for (uint64_t left = share.left.load(std::memory_order_acquire); FirstUnit(left) < EndUnit(left);) {
    const uint64_t taken = from_front ? FirstUnit(left) : EndUnit(left) - 1;
    const uint64_t rest = from_front ? left + (uint64_t{1} << kUnitBits) : left - 1;
    if (!share.left.compare_exchange_weak(left, rest, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    if (done == 0) job = job_;
    const int64_t begin = static_cast<int64_t>(taken) * job.unit;
    job.fn(job.context, begin, std::min(begin + job.unit, job.count));
    ++done;
    left = share.left.load(std::memory_order_acquire);
  }
  if (done == 0) return;
  if (pending_units_.fetch_sub(done) == done && caller_parked_.load()) {
    std::lock_guard<std::mutex> lock(park_mutex_);
    job_done_.notify_one();
  }
}

void ThreadPool::WaitUntilDone() {
  for (int spin = 0; spin < spin_limit_; ++spin) {
    if (pending_units_.load(std::memory_order_acquire) == 0) return;
    Pause();
  }
  std::unique_lock<std::mutex> lock(park_mutex_);
  caller_parked_.store(true);
  // No deadline: a unit only computes, so it always ends.
  job_done_.wait(lock, [this] { return pending_units_.load() == 0; });
  caller_parked_.store(false);
}

bool ThreadPool::WaitForJob(uint64_t& seen) {
  const auto published = [&] { return ending_.load() || generation_.load() != seen; };
  for (int spin = 0; spin < spin_limit_ && !published(); ++spin) Pause();
  if (!published()) {
    std::unique_lock<std::mutex> lock(park_mutex_);
    parked_workers_.fetch_add(1);
    // No deadline: the pool's destructor ends the wait.
    job_published_.wait(lock, published);
    parked_workers_.fetch_sub(1);
  }
  seen = generation_.load();
  return !ending_.load();
}

void ThreadPool::WorkerLoop(int index) {
  pthread_setname_np(pthread_self(), ("cpu-" + std::to_string(index)).c_str());
  uint64_t seen = 0;
  while (WaitForJob(seen)) RunUnits(index);
}

}  // namespace foredraft
