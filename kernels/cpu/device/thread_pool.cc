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
constexpr uint64_t kGenerationMask = (uint64_t{1} << (64 - 2 * kUnitBits)) - 1;
// Generations wrap around, so every so many jobs all shares forget theirs.
constexpr uint64_t kForgetEvery = 1 << 16;
constexpr int kSpinLimit = 4000;  // pauses: some 50 us
constexpr int kGroupThreads = 16;

// A unit's cost in scalar operations, about 3 per nanosecond. If threads spin, taking a unit costs about 50
// ns, starting a job 500 ns; if they park, waking them costs over 10 us.
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
uint64_t GenerationOf(uint64_t share) { return share >> (2 * kUnitBits); }
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

void PinTo(pthread_t thread, const std::vector<int>& cpus) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int cpu : cpus) CPU_SET(cpu, &set);
  pthread_setaffinity_np(thread, sizeof(set), &set);  // best effort
}

bool Fits(int threads, int pools) { return threads * pools <= static_cast<int>(AllowedCores().size()); }

// Puts thread i on the i-th allowed core if `pin`, for which there must be enough cores.
ThreadPlacement PlaceInOrder(int threads, bool pin) {
  CHECK_GE(threads, 1);
  ThreadPlacement placement = PlaceOnOneNode(threads);
  if (!pin) return placement;
  const std::vector<int> cores = AllowedCores();
  for (int i = 0; i < threads; ++i) placement.cpus.push_back({cores[i]});
  return placement;
}

bool PinsEach(const ThreadPlacement& placement) {
  return !placement.cpus.empty() && placement.cpus[0].size() == 1;
}

}  // namespace

ThreadPool::ThreadPool(int threads, bool pin, int pools)
    : ThreadPool(PlaceInOrder(threads, pin && pools == 1 && Fits(threads, 1)), Fits(threads, pools),
                 pin && pools == 1 && Fits(threads, 1)) {}

ThreadPool::ThreadPool(const ThreadPlacement& placement)
    : ThreadPool(placement, Fits(placement.thread_count(), 1), PinsEach(placement)) {}

ThreadPool::ThreadPool(const ThreadPlacement& placement, bool spin, bool pinned)
    : spin_limit_(spin ? kSpinLimit : 0),
      pinned_(pinned),
      cpus_(placement.cpus),
      nodes_(placement.nodes.size()),
      shares_(placement.thread_count()) {
  MakeGroups(placement);
  for (int index = 1; index < thread_count(); ++index) {
    try {
      workers_.emplace_back([this, index] { WorkerLoop(index); });
    } catch (const std::system_error&) {
      EndThreads();
      throw;
    }
    if (!cpus_.empty()) PinTo(workers_.back().native_handle(), cpus_[index]);
  }
}

ThreadPool::~ThreadPool() { EndThreads(); }

void ThreadPool::MakeGroups(const ThreadPlacement& placement) {
  const auto groups_of = [](int threads) { return (threads + kGroupThreads - 1) / kGroupThreads; };
  int count = 0;
  for (const ThreadPlacement::Node& node : placement.nodes) count += groups_of(node.threads);
  groups_ = std::vector<Group>(count);
  int first = 0, group = 0;
  for (int node = 0; node < node_count(); ++node) {
    const int threads = placement.nodes[node].threads;
    CHECK_GE(threads, 1);
    nodes_[node].first_thread = first;
    nodes_[node].threads = threads;
    const int groups = groups_of(threads);
    for (int i = 0; i < groups; ++i, ++group) {
      groups_[group].node = node;
      groups_[group].first_thread = first + threads * i / groups;
      groups_[group].threads = first + threads * (i + 1) / groups - groups_[group].first_thread;
      seats_.resize(seats_.size() + groups_[group].threads, {.node = node, .group = group});
    }
    first += threads;
  }
}

void ThreadPool::EndThreads() {
  ending_.store(true);
  for (Group& group : groups_) {
    std::lock_guard<std::mutex> lock(group.mutex);
    group.job_published.notify_all();
  }
  for (std::thread& thread : workers_) thread.join();
}

void ThreadPool::PinCaller() {
  if (!cpus_.empty() && !workers_.empty()) PinTo(pthread_self(), cpus_[0]);
}

void ThreadPool::Run(const Work& work, RangeFn fn, const void* context) {
  if (work.count <= 0) return;
  const int64_t threads = thread_count();
  const int64_t unit_cost = spins() ? kUnitCost : kParkedUnitCost;
  const int64_t unit =
      std::max({int64_t{1}, unit_cost / std::max<int64_t>(1, work.item_cost),
                (work.count + static_cast<int64_t>(kUnitMask) - 1) / static_cast<int64_t>(kUnitMask)});
  if (threads == 1 || unit >= work.count || !SavesEnough(work.count, work.item_cost, threads)) {
    fn(context, 0, work.count);
    return;
  }
  std::lock_guard<std::mutex> one_job(run_mutex_);
  Publish(work, unit, fn, context);
  WakeParked();
  RunUnits(0, generation_);
  WaitUntilDone();
}

void ThreadPool::Publish(const Work& work, int64_t unit, RangeFn fn, const void* context) {
  generation_ = (generation_ + 1) & kGenerationMask;
  if (generation_ % kForgetEvery == 0) {
    for (Share& share : shares_) share.left.store(MakeShare((generation_ - 1) & kGenerationMask, 0, 0));
  }
  const int64_t units = (work.count + unit - 1) / unit;
  const auto cut = [&](int node) {
    if (work.panels > 0) return work.count / work.panels * FirstPanel(work.panels, node);
    return std::min(FirstPanel(units, node) * unit, work.count);
  };
  const auto word_of = [&](const Group& group) {
    return MakeShare(generation_, 0, (group.job.end - group.job.begin + unit - 1) / unit);
  };
  for (Group& group : groups_) {
    group.job = {fn, context, cut(group.node), cut(group.node + 1), unit};
    const uint64_t word = word_of(group);
    const int last = group.first_thread + group.threads - 1;
    group.pending_units.store(static_cast<int64_t>(EndUnit(WholeShare(word, last)) -
                                                   FirstUnit(WholeShare(word, group.first_thread))),
                              std::memory_order_relaxed);
  }
  for (Group& group : groups_) group.published.store(word_of(group));
}

void ThreadPool::WakeParked() {
  for (Group& group : groups_) {
    if (group.parked_workers.load() == 0) continue;
    std::lock_guard<std::mutex> lock(group.mutex);
    // With several groups, the woken thread wakes the rest of its group.
    if (groups_.size() == 1) {
      group.job_published.notify_all();
    } else {
      group.job_published.notify_one();
    }
  }
}

uint64_t ThreadPool::WholeShare(uint64_t published, int thread) const {
  const Node& node = nodes_[seats_[thread].node];
  const uint64_t units = EndUnit(published), threads = node.threads, index = thread - node.first_thread;
  return MakeShare(GenerationOf(published), units * index / threads, units * (index + 1) / threads);
}

void ThreadPool::RunUnits(int thread, uint64_t generation) {
  RunShare(thread, generation, /*from_front=*/true);
  const Group& own = groups_[seats_[thread].group];
  for (int i = 1; i < own.threads; ++i) {
    RunShare(own.first_thread + (thread - own.first_thread + i) % own.threads, generation,
             /*from_front=*/false);
  }
  if (groups_.size() == 1) return;
  StealFromGroups(thread, generation, /*same_node=*/true);
  if (nodes_.size() > 1) StealFromGroups(thread, generation, /*same_node=*/false);
}

void ThreadPool::StealFromGroups(int thread, uint64_t generation, bool same_node) {
  const int count = static_cast<int>(groups_.size());
  const Seat& seat = seats_[thread];
  for (int i = 1; i < count; ++i) {
    const Group& group = groups_[(seat.group + i) % count];
    if ((group.node == seat.node) != same_node) continue;
    // Thieves of one group begin at different shares.
    for (int j = 0; j < group.threads; ++j) {
      if (group.pending_units.load(std::memory_order_relaxed) == 0) break;
      RunShare(group.first_thread + (thread + j) % group.threads, generation, /*from_front=*/false);
    }
  }
}

void ThreadPool::RunShare(int thread, uint64_t generation, bool from_front) {
  Group& group = groups_[seats_[thread].group];
  const uint64_t published = group.published.load(std::memory_order_acquire);
  if (GenerationOf(published) != generation) return;
  const uint64_t whole = WholeShare(published, thread);
  if (FirstUnit(whole) == EndUnit(whole)) return;
  std::atomic<uint64_t>& share = shares_[thread].left;
  int64_t done = 0;
  Job job{};
  while (true) {
    uint64_t left = share.load(std::memory_order_acquire);
    uint64_t rest = left;
    if (GenerationOf(left) != generation) {
      // An older share, unless this job has ended: then all was taken.
      if (group.published.load(std::memory_order_acquire) != published) break;
      rest = whole;
    }
    if (FirstUnit(rest) == EndUnit(rest)) break;
    const uint64_t taken = from_front ? FirstUnit(rest) : EndUnit(rest) - 1;
    rest = from_front ? rest + (uint64_t{1} << kUnitBits) : rest - 1;
    if (!share.compare_exchange_weak(left, rest, std::memory_order_acq_rel, std::memory_order_acquire)) {
      continue;
    }
    if (done == 0) job = group.job;
    const int64_t begin = job.begin + static_cast<int64_t>(taken) * job.unit;
    job.fn(job.context, begin, std::min(begin + job.unit, job.end));
    ++done;
  }
  if (done == 0) return;
  if (group.pending_units.fetch_sub(done) == done && caller_parked_.load()) {
    std::lock_guard<std::mutex> lock(caller_mutex_);
    job_done_.notify_one();
  }
}

bool ThreadPool::Done() const {
  return std::all_of(groups_.begin(), groups_.end(),
                     [](const Group& group) { return group.pending_units.load() == 0; });
}

void ThreadPool::WaitUntilDone() {
  for (int spin = 0; spin < spin_limit_; ++spin) {
    if (Done()) return;
    Pause();
  }
  std::unique_lock<std::mutex> lock(caller_mutex_);
  caller_parked_.store(true);
  // No deadline: a unit only computes, so it always ends.
  job_done_.wait(lock, [this] { return Done(); });
  caller_parked_.store(false);
}

bool ThreadPool::WaitForJob(int thread, uint64_t& seen) {
  Group& group = groups_[seats_[thread].group];
  const std::atomic<uint64_t>& word = group.published;
  const auto published = [&] { return ending_.load() || GenerationOf(word.load()) != seen; };
  for (int spin = 0; spin < spin_limit_ && !published(); ++spin) Pause();
  if (!published()) {
    std::unique_lock<std::mutex> lock(group.mutex);
    group.parked_workers.fetch_add(1);
    // No deadline: the pool's destructor ends the wait.
    group.job_published.wait(lock, published);
    if (group.parked_workers.fetch_sub(1) > 1 && groups_.size() > 1) group.job_published.notify_all();
  }
  seen = GenerationOf(word.load());
  return !ending_.load();
}

void ThreadPool::WorkerLoop(int index) {
  pthread_setname_np(pthread_self(), ("cpu-" + std::to_string(index)).c_str());
  uint64_t seen = 0;
  while (WaitForJob(index, seen)) RunUnits(index, seen);
}

}  // namespace foredraft
