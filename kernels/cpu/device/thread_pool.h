#pragma once

// A work-stealing thread pool. ParallelFor gives each thread a share of [0, count), which the thread walks
// from front to back: so a weight is read in long streams, and by the same thread each time. A thread that
// has finished its share steals from the backs of the others. So the thread and the range of an item depend
// on timing, and its result must not depend on them. No allocation per call.
//
// Threads belong to nodes of the machine, and to groups of at most 16 of a node. A job is published to each
// group and counted done by group; thieves try their own group first. So with 128 threads no cache line is
// read or written by all. A thread computes its own share from what its group was told.
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

#include "kernels/cpu/device/topology.h"

namespace foredraft {

class ThreadPool {
 public:
  // `threads` includes the caller of ParallelFor. Workers are named cpu-1, cpu-2...
  // `pools`: the number of pools that share this machine's cores, one per rank.
  ThreadPool(int threads, bool pin, int pools = 1);
  // The only pool of the machine.
  explicit ThreadPool(const ThreadPlacement& placement);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int thread_count() const { return static_cast<int>(seats_.size()); }
  int node_count() const { return static_cast<int>(nodes_.size()); }
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
    Run({.count = count, .item_cost = item_cost}, CallerOf<Body>(), &body);
  }

  // The first of `panels` that the node's threads read; `panels` for node_count(). It depends on panels and
  // placement alone, so that the node's memory can hold them.
  int64_t FirstPanel(int64_t panels, int node) const {
    return node == node_count() ? panels : panels * nodes_[node].first_thread / thread_count();
  }
  // ParallelFor over panels * items_per_panel items, ordered by node: a node's threads begin with its items,
  // and no range spans two nodes unless it has all items.
  template <class Body>
  void ParallelForPanels(int64_t panels, int64_t items_per_panel, int64_t item_cost, const Body& body) {
    Run({.count = panels * items_per_panel, .item_cost = item_cost, .panels = panels}, CallerOf<Body>(),
        &body);
  }

 private:
  using RangeFn = void (*)(const void* context, int64_t begin, int64_t end);

  template <class Body>
  static RangeFn CallerOf() {
    return [](const void* context, int64_t begin, int64_t end) {
      (*static_cast<const Body*>(context))(begin, end);
    };
  }

  struct Work {
    int64_t count;
    int64_t item_cost;
    int64_t panels = 0;  // 0: items belong to no node
  };

  // What the threads of a node compute.
  struct Job {
    RangeFn fn;
    const void* context;
    int64_t begin;  // items
    int64_t end;
    int64_t unit;  // items per unit
  };

  struct Node {
    int first_thread = 0;
    int threads = 0;
  };

  // Workers that learn of a job together, park together, and whose units are counted done together.
  struct alignas(64) Group {
    // Generation (24 bits) | 0 (20) | units of the node (20).
    std::atomic<uint64_t> published{0};
    // The job of the group's node. Workers read it only between taking a unit of the group and counting it
    // done; Run does not overwrite it in that time.
    Job job{};
    alignas(64) std::atomic<int64_t> pending_units{0};
    // Every job reads it and it rarely changes, so it has a line that no job writes.
    alignas(64) std::atomic<int> parked_workers{0};
    int node = 0;
    int first_thread = 0;
    int threads = 0;
    alignas(64) std::mutex mutex;
    std::condition_variable job_published;
  };

  // The rest of a thread's share: generation (24 bits) | first unit (20) | end unit (20). A unit is taken by
  // a compare-exchange of the whole word, so a thread that wakes late cannot take a unit of a finished job. A
  // share of an older generation than its group's is still whole.
  struct alignas(64) Share {
    std::atomic<uint64_t> left{0};
  };

  struct Seat {  // of a thread
    int node = 0;
    int group = 0;
  };

  ThreadPool(const ThreadPlacement& placement, bool spin, bool pinned);

  void MakeGroups(const ThreadPlacement& placement);
  void Run(const Work& work, RangeFn fn, const void* context);
  // Tells each group its node's part of the job, in units of `unit` items.
  void Publish(const Work& work, int64_t unit, RangeFn fn, const void* context);
  void WakeParked();
  // The units of a thread's share before anything is taken.
  uint64_t WholeShare(uint64_t published, int thread) const;
  void WorkerLoop(int index);
  // Runs the rest of this thread's share, then steals: from its group, its node, the others.
  void RunUnits(int thread, uint64_t generation);
  void StealFromGroups(int thread, uint64_t generation, bool same_node);
  // Takes units of a share, from the front or from the back, until none is left.
  void RunShare(int thread, uint64_t generation, bool from_front);
  bool Done() const;
  void WaitUntilDone();
  // Spins, then parks, until a job newer than `seen` is published; updates `seen`. False when the pool is
  // ending.
  bool WaitForJob(int thread, uint64_t& seen);
  void EndThreads();

  const int spin_limit_;
  const bool pinned_;
  const std::vector<std::vector<int>> cpus_;  // of each thread; empty: any
  std::vector<std::thread> workers_;

  // What the caller writes for each job lies apart from what workers read.
  alignas(64) std::mutex run_mutex_;  // one job at a time
  uint64_t generation_ = 0;           // of the newest job; guarded by run_mutex_

  // Constant size since construction.
  alignas(64) std::vector<Seat> seats_;
  std::vector<Node> nodes_;
  std::vector<Group> groups_;
  std::vector<Share> shares_;

  alignas(64) std::atomic<bool> ending_{false};
  alignas(64) std::mutex caller_mutex_;
  std::condition_variable job_done_;
  alignas(64) std::atomic<bool> caller_parked_{false};
};

}  // namespace foredraft
