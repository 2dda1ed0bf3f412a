#ifndef FOREDRAFT_KERNELS_CPU_THREAD_POOL_H_
#define FOREDRAFT_KERNELS_CPU_THREAD_POOL_H_

// The threads an op runs on. ParallelFor cuts [0, count) into chunks that threads take one after another, so
// who computes an item depends on timing: an item's result must not depend on its chunk. No allocation per
// call.
//
// Owner: CpuDevice. Thread: ParallelFor may be called from any thread, calls run one at a time. Workers spin
// briefly after a job, then park; with more threads than cores, those of all pools counted, they never spin
// and are never pinned. Nor are those of several pools: they would all take the same cores.

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
  // `pools`: how many such pools share this machine's cores, one per rank.
  ThreadPool(int threads, bool pin, int pools = 1);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(workers_.size()) + 1; }
  bool spins() const { return spin_limit_ > 0; }
  bool pinned() const { return pinned_; }

  // Calls body(begin, end) over disjoint ranges that cover [0, count). `item_cost` is roughly the elementary
  // operations of one item: work too small to share stays on the caller.
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
    int64_t grain;  // items per chunk
  };

  void Run(int64_t count, int64_t item_cost, RangeFn fn, const void* context);
  void WorkerLoop(int index);
  bool TakeAndRunChunk();
  void WaitUntilDone(int64_t chunk_count);
  // Spins, then parks, until a job newer than `seen` is published. False when the pool is ending.
  bool WaitForJob(uint64_t* seen);

  const int spin_limit_;
  const bool pinned_;
  std::vector<std::thread> workers_;

  std::mutex run_mutex_;  // one job at a time

  // generation (24 bits) | next chunk (20) | chunk count (20). A worker takes a chunk by a compare-exchange
  // of the whole word, so one that wakes late can never take a chunk of a job it has not seen published;
  // `job_` is read only between taking a chunk and counting it done, when nobody may overwrite it.
  std::atomic<uint64_t> ticket_{0};
  Job job_{};
  std::atomic<int64_t> done_chunks_{0};

  std::mutex park_mutex_;
  std::condition_variable job_published_;
  std::condition_variable job_done_;
  std::atomic<int> parked_workers_{0};
  std::atomic<bool> caller_parked_{false};
  std::atomic<bool> ending_{false};
};

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_THREAD_POOL_H_
