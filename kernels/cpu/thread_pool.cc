#include "kernels/cpu/thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <string>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr int kChunkBits = 20;
constexpr uint64_t kChunkMask = (uint64_t{1} << kChunkBits) - 1;
constexpr int64_t kChunksPerThread = 4;     // enough to even out uneven items
constexpr int64_t kMinChunkCost = 1 << 15;  // about 10 us of scalar work: below that sharing costs more
constexpr int kSpinLimit = 4000;            // pauses: some 50 us

uint64_t MakeTicket(uint64_t generation, uint64_t next, uint64_t chunk_count) {
  return generation << (2 * kChunkBits) | next << kChunkBits | chunk_count;
}
uint64_t Generation(uint64_t ticket) { return ticket >> (2 * kChunkBits); }
uint64_t NextChunk(uint64_t ticket) { return ticket >> kChunkBits & kChunkMask; }
uint64_t ChunkCount(uint64_t ticket) { return ticket & kChunkMask; }

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

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin, int pools)
    : spin_limit_(threads * pools <= static_cast<int>(AllowedCores().size()) ? kSpinLimit : 0),
      pinned_(pin && pools == 1 && threads <= static_cast<int>(AllowedCores().size())) {
  CHECK_GE(threads, 1);
  const std::vector<int> cores = AllowedCores();
  for (int index = 1; index < threads; ++index) {
    workers_.emplace_back([this, index] { WorkerLoop(index); });
    if (pinned_) {
      cpu_set_t set;
      CPU_ZERO(&set);
      CPU_SET(cores[index], &set);
      pthread_setaffinity_np(workers_.back().native_handle(), sizeof(set), &set);  // a hint: may fail
    }
  }
}

ThreadPool::~ThreadPool() {
  ending_.store(true);
  {
    std::lock_guard<std::mutex> lock(park_mutex_);
    job_published_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::Run(int64_t count, int64_t item_cost, RangeFn fn, const void* context) {
  if (count <= 0) return;
  const int64_t threads = thread_count();
  const int64_t min_grain = std::max<int64_t>(1, kMinChunkCost / std::max<int64_t>(1, item_cost));
  const int64_t grain =
      std::max(min_grain, (count + threads * kChunksPerThread - 1) / (threads * kChunksPerThread));
  const int64_t chunk_count = (count + grain - 1) / grain;
  if (threads == 1 || chunk_count == 1) {
    fn(context, 0, count);
    return;
  }
  std::lock_guard<std::mutex> one_job(run_mutex_);
  job_ = {fn, context, count, grain};
  done_chunks_.store(0, std::memory_order_relaxed);
  const uint64_t generation = Generation(ticket_.load(std::memory_order_relaxed)) + 1;
  ticket_.store(MakeTicket(generation, 0, chunk_count));
  if (parked_workers_.load() > 0) {
    std::lock_guard<std::mutex> lock(park_mutex_);
    job_published_.notify_all();
  }
  while (TakeAndRunChunk()) {
  }
  WaitUntilDone(chunk_count);
}

bool ThreadPool::TakeAndRunChunk() {
  uint64_t ticket = ticket_.load(std::memory_order_acquire);
  do {
    if (NextChunk(ticket) >= ChunkCount(ticket)) return false;
  } while (!ticket_.compare_exchange_weak(ticket, ticket + (uint64_t{1} << kChunkBits),
                                          std::memory_order_acq_rel, std::memory_order_acquire));
  const Job job = job_;
  const int64_t begin = static_cast<int64_t>(NextChunk(ticket)) * job.grain;
  job.fn(job.context, begin, std::min(begin + job.grain, job.count));
  const int64_t chunk_count = static_cast<int64_t>(ChunkCount(ticket));
  if (done_chunks_.fetch_add(1) + 1 == chunk_count && caller_parked_.load()) {
    std::lock_guard<std::mutex> lock(park_mutex_);
    job_done_.notify_one();
  }
  return true;
}

void ThreadPool::WaitUntilDone(int64_t chunk_count) {
  for (int spin = 0; spin < spin_limit_; ++spin) {
    if (done_chunks_.load(std::memory_order_acquire) == chunk_count) return;
    Pause();
  }
  std::unique_lock<std::mutex> lock(park_mutex_);
  caller_parked_.store(true);
  // No deadline: a chunk is pure computation and always ends.
  job_done_.wait(lock, [&] { return done_chunks_.load() == chunk_count; });
  caller_parked_.store(false);
}

bool ThreadPool::WaitForJob(uint64_t* seen) {
  const auto published = [&] { return ending_.load() || Generation(ticket_.load()) != *seen; };
  for (int spin = 0; spin < spin_limit_ && !published(); ++spin) Pause();
  if (!published()) {
    std::unique_lock<std::mutex> lock(park_mutex_);
    parked_workers_.fetch_add(1);
    // No deadline: the pool's destructor ends the wait.
    job_published_.wait(lock, published);
    parked_workers_.fetch_sub(1);
  }
  *seen = Generation(ticket_.load());
  return !ending_.load();
}

void ThreadPool::WorkerLoop(int index) {
  pthread_setname_np(pthread_self(), ("cpu-" + std::to_string(index)).c_str());
  uint64_t seen = 0;
  while (WaitForJob(&seen)) {
    while (TakeAndRunChunk()) {
    }
  }
}

}  // namespace foredraft
