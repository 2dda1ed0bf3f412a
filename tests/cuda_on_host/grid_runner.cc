#include "tests/cuda_on_host/grid_runner.h"

#include <signal.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "tests/cuda_on_host/cluster_runner.h"
#include "tests/cuda_on_host/counts.h"
#include "tests/cuda_on_host/global_order.h"

namespace cuda_on_host {
namespace {

// A running grid; threads take its clusters one by one.
struct OpenGrid {
  GridWork* work = nullptr;
  std::vector<uint32_t> order;                 // each cluster's first block
  std::vector<std::vector<PeerFlag>> awaited;  // by order's blocks; each is written by the thread that ran it
  std::atomic<size_t> next{0};

  void TakeCluster(size_t i, bool guarded) {
    awaited[i] = ClusterRunnerOfThisThread().Run(*work, order[i], guarded);
  }
  void TakeClusters() {
    for (size_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < order.size();) TakeCluster(i, false);
  }
};

// The threads besides the caller's.
class Workers {
 public:
  ~Workers() { SetCount(0); }

  void SetCount(int count) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    changed_.notify_all();
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    stop_ = false;
    count_ = count;
  }

  void Help(OpenGrid& grid) {
    while (static_cast<int>(threads_.size()) < count_) threads_.emplace_back([this] { Work(); });
    if (!threads_.empty() && grid.order.size() > 1) {
      {
        std::lock_guard<std::mutex> lock(mutex_);
        grid_ = &grid;
        ++round_;
        busy_ = static_cast<int>(threads_.size());
      }
      changed_.notify_all();
      grid.TakeClusters();
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait(lock, [this] { return busy_ == 0; });
      grid_ = nullptr;
    } else {
      grid.TakeClusters();
    }
  }

 private:
  void Work() {
    uint64_t seen = 0;
    std::unique_lock<std::mutex> lock(mutex_);
    seen = grid_ != nullptr ? round_ - 1 : round_;
    while (true) {
      changed_.wait(lock, [&] { return stop_ || round_ != seen; });
      if (stop_) return;
      seen = round_;
      OpenGrid* grid = grid_;
      lock.unlock();
      grid->TakeClusters();
      lock.lock();
      if (--busy_ == 0) changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  OpenGrid* grid_ = nullptr;
  uint64_t round_ = 0;
  int busy_ = 0;
  bool stop_ = false;
  int count_ = 1;
  std::vector<std::thread> threads_;
};

// Identifies the running block in a fault report. Guarded by the runtime's lock, like the memory.
const DeviceMemory* guarded_memory = nullptr;

void OnFault(int signal, siginfo_t* info, void*) {
  if (InKernel() && guarded_memory != nullptr && guarded_memory->Inside(info->si_addr)) {
    KernelFault({"global memory", 0}, "touched before GridDependencyWait");
  }
  std::signal(signal, SIG_DFL);  // raised again, as if it had not been caught
}

void CatchGuardedTouches() {
  static const bool caught = [] {
    struct sigaction action = {};
    action.sa_sigaction = OnFault;
    action.sa_flags = SA_SIGINFO;
    return sigaction(SIGSEGV, &action, nullptr) == 0;
  }();
  if (!caught) KernelFault({__FILE__, __LINE__}, "no handler for SIGSEGV");
}

Workers& AllWorkers() {
  static Workers workers;
  return workers;
}

// The first blocks of those clusters that wait for nothing, in a random order.
std::vector<uint32_t> BlocksToRun(GridWork& work) {
  if (work.begun) {
    std::vector<uint32_t> blocks;
    std::erase_if(work.open_blocks, [&blocks](const OpenBlock& open) {
      for (const PeerFlag& awaited : open.awaited) {
        if (!awaited.ready()) return false;
      }
      blocks.push_back(open.block);
      return true;
    });
    return blocks;
  }
  std::vector<uint32_t> order(static_cast<size_t>(work.grid.x) * work.grid.y * work.grid.z / work.cluster);
  for (size_t i = 0; i < order.size(); ++i) order[i] = static_cast<uint32_t>(i) * work.cluster;
  Shuffler shuffler(work.seed);
  for (size_t i = order.size(); i > 1; --i) {
    std::swap(order[i - 1], order[shuffler.Below(static_cast<uint32_t>(i))]);
  }
  return order;
}

}  // namespace

void SetBlockThreads(int count) { AllWorkers().SetCount(count - 1); }

bool RunGrid(GridWork& work) {
  ForgetGlobalWrites();
  OpenGrid grid;
  grid.work = &work;
  grid.order = BlocksToRun(work);
  grid.awaited.resize(grid.order.size());
  if (work.guarded_memory != nullptr && !std::exchange(work.begun, true)) {
    guarded_memory = work.guarded_memory;
    CatchGuardedTouches();
    grid.TakeCluster(grid.next++, true);
    guarded_memory = nullptr;
  }
  if (ChecksGlobalOrder()) {
    grid.TakeClusters();
  } else {
    AllWorkers().Help(grid);
  }
  work.begun = true;
  for (size_t i = 0; i < grid.order.size(); ++i) {
    if (!grid.awaited[i].empty()) work.open_blocks.push_back({grid.order[i], std::move(grid.awaited[i])});
  }
  if (!work.open_blocks.empty()) return false;
  if (work.programmatic && !work.waited) {
    KernelFault({"the kernel's end", 0}, "programmatic launch, but no thread called GridDependencyWait");
  }
  return true;
}

}  // namespace cuda_on_host
