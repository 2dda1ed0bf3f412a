#pragma once

// A work-stealing thread pool. ParallelFor gives each thread a share of [0, count), which the thread walks
// from front to back: so a weight is read in long streams, and by the same thread each time. A thread that
// has finished its share steals from the backs of the others. So the thread and the range of an item depend
// on timing, and its result must not depend on them. No allocation per call.
//
// Owner: CpuDevice. Thread: ParallelFor may be called from any thread; calls run one at a time. Workers spin
// briefly after a job, then park. If the threads of all pools on the machine outnumber the cores, workers
// never spin and are never pinned. With several pools they are never pinned either: all pools would pin to
// the same cores.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace foredraft {

class ThreadPool {
 public:
  // `threads` includes the caller of ParallelFor. Workers are named cpu-1, cpu-2...
  // `pools`: the number of pools that share this machine's cores, one per rank.
  ThreadPool(int threads, bool pin, int pools = 1);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }
  bool spins() const { return spin_limit_ > 0; }
  bool pinned() const { return pinned_; }
  // Pins the calling thread, which calls ParallelFor from now on, to the core that the pinned workers leave
  // free. Otherwise the kernel may put it on a worker's core, where the two take turns while another core
  // idles. No effect without pinned workers.
  void PinCaller();

  // Calls body(begin, end) over disjoint ranges that cover [0, count). `item_cost` is roughly the number of
  // scalar operations per item: work too small to divide stays on the caller.
  template <class Body>
  void ParallelFor(int64_t count, int64_t item_cost, const Body& body) {
    Run(
        count, item_cost,
        [](const void* context, int64_t begin, int64_t end) {
          (*static_cast<const Body*>(context))(begin, end);
        },
        &body);
  }

 private:
  using RangeFn = void (*)(const void* context, int64_t begin, int64_t end);

  struct Job {
    RangeFn fn;
    const void* context;
    int64_t count;
    int64_t unit;  // items per unit
  };

  // The rest of a thread's share: generation (24 bits) | first unit (20) | end unit (20). A unit is taken by
  // a compare-exchange of the whole word, so a thread that wakes late cannot take a unit of a finished job.
  // `job_` is read only between taking a unit and counting it done; Run does not overwrite it in that time.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };

  void Run(int64_t count, int64_t item_cost, RangeFn fn, const void* context);
  void WorkerLoop(int index);
  // Runs the rest of this thread's share, then steals from the others.
  void RunUnits(int thread);
  // Takes units of a share, from the front or from the back, until none is left.
  void RunShare(Share& share, bool from_front);
  void WaitUntilDone();
  // Spins, then parks, until a job newer than `seen` is published; updates `seen`. False when the pool is
  // ending.
  bool WaitForJob(uint64_t& seen);

  const int spin_limit_;
  const bool pinned_;
  const int caller_core_;  // workers are pinned to the cores after it
  std::vector<std::thread> workers_;

  std::mutex run_mutex_;  // one job at a time

  std::vector<Share> shares_;            // one per thread, the caller's first
  std::atomic<uint64_t> generation_{0};  // of the newest job
  Job job_{};
  std::atomic<int64_t> pending_units_{0};

  std::mutex park_mutex_;
  std::condition_variable job_published_;
  std::condition_variable job_done_;
  std::atomic<int> parked_workers_{0};
  std::atomic<bool> caller_parked_{false};
  std::atomic<bool> ending_{false};
};

}  // namespace foredraft
