#include "tests/cuda_on_host/block_runner.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "tests/cuda_on_host/sanitizer_fibers.h"

namespace cuda_on_host {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kGuardBytes = 1024;
constexpr std::byte kGuard{0xa5};

}  // namespace

BlockRunner& BlockRunnerOfThisThread() {
  // Never destroyed: its fibers would have to be unwound. A thread that ends leaves its runner to the next.
  static std::mutex& mutex = *new std::mutex;
  static std::vector<BlockRunner*>& idle = *new std::vector<BlockRunner*>;
  struct Lease {
    Lease() {
      std::lock_guard<std::mutex> lock(mutex);
      if (idle.empty()) idle.push_back(new BlockRunner);
      runner = idle.back();
      idle.pop_back();
    }
    ~Lease() {
      std::lock_guard<std::mutex> lock(mutex);
      idle.push_back(runner);
    }
    BlockRunner* runner;
  };
  thread_local Lease lease;
  return *lease.runner;
}

BlockRunner::BlockRunner() {
  shared_memory_ = std::make_unique<std::byte[]>(kMaxSharedBytes + 2 * kGuardBytes + 1024);
  const uintptr_t first = reinterpret_cast<uintptr_t>(shared_memory_.get()) + kGuardBytes;
  shared_ = reinterpret_cast<std::byte*>((first + 1023) / 1024 * 1024);
}

// ---- the hub: what runs next ----

void BlockRunner::Run(GridWork& work, uint3 block) {
  running = this;
  work_ = &work;
  blockIdx = block;
  blockDim = work.block;
  gridDim = work.grid;
  const uint64_t number =
      block.x + static_cast<uint64_t>(work.grid.x) * (block.y + static_cast<uint64_t>(work.grid.y) * block.z);
  shuffler_ = Shuffler(work.seed ^ (number * 0x9e3779b97f4a7c15u));
  Prepare();
  FillShared();
  while (live_ > 0) {
    if (polling_ > 0 && (ready_warps_.empty() || shuffler_.Below(8) == 0)) WakePolling();
    if (ready_warps_.empty()) {
      current_ = threads_[0].get();
      KernelFault(current_->place, "no thread of the block can go on\n" + Report());
    }
    RunWarp(PickWarp());
  }
  CheckShared();
  current_ = nullptr;
  work_ = nullptr;
  running = nullptr;
}

void BlockRunner::Prepare() {
  const dim3 block = work_->block;
  thread_count_ = static_cast<int>(block.x * block.y * block.z);
  while (static_cast<int>(threads_.size()) < thread_count_) AddThread();
  const int warps = (thread_count_ + 31) / 32;
  ready_.assign(warps, 0);
  meeting_.assign(warps, 0);
  ready_warps_.clear();
  for (NamedBarrierState& named : named_) named = {};
  live_ = thread_count_;
  at_barrier_ = 0;
  polling_ = 0;
  last_warp_ = -1;
  sticky_ = shuffler_.Below(2) == 0;
  for (int i = 0; i < thread_count_; ++i) {
    DeviceThread& thread = *threads_[i];
    const unsigned number = static_cast<unsigned>(i);
    thread.index = {number % block.x, number / block.x % block.y, number / block.x / block.y};
    thread.copies.clear();
    thread.open_group = 0;
    thread.place = {"the kernel's start", 0};
    Wake(thread);
  }
}

void BlockRunner::AddThread() {
  auto thread = std::make_unique<DeviceThread>();
  DeviceThread* address = thread.get();
  thread->number = static_cast<int>(threads_.size());
  thread->tsan_fiber = CreateTsanFiber();
  boost::context::protected_fixedsize_stack allocator(kStackBytes);
  boost::context::stack_context stack = allocator.allocate();
  thread->stack_bottom = static_cast<std::byte*>(stack.sp) - stack.size;
  thread->stack_bytes = stack.size;
  thread->context =
      boost::context::fiber(std::allocator_arg, boost::context::preallocated(stack.sp, stack.size, stack),
                            allocator, [this, address](boost::context::fiber&& hub) {
                              ThreadMain(*address, std::move(hub));
                              return std::move(hub_);
                            });
  threads_.push_back(std::move(thread));
}

int BlockRunner::PickWarp() {
  if (sticky_ && last_warp_ >= 0 && ready_[last_warp_] != 0) return last_warp_;
  last_warp_ = ready_warps_[shuffler_.Below(static_cast<uint32_t>(ready_warps_.size()))];
  return last_warp_;
}

// Every lane that is ready now, once, in a random order.
void BlockRunner::RunWarp(int warp) {
  uint32_t lanes = ready_[warp];
  ready_[warp] = 0;
  ready_warps_.erase(std::find(ready_warps_.begin(), ready_warps_.end(), warp));
  int order[32];
  int count = 0;
  for (; lanes != 0; lanes &= lanes - 1) order[count++] = __builtin_ctz(lanes);
  for (int i = count - 1; i > 0; --i)
    std::swap(order[i], order[shuffler_.Below(static_cast<uint32_t>(i + 1))]);
  for (int i = 0; i < count; ++i) Resume(*threads_[32 * warp + order[i]]);
}

void BlockRunner::Wake(DeviceThread& thread) {
  thread.state = ThreadState::kReady;
  const int warp = thread.number / 32;
  if (ready_[warp] == 0) ready_warps_.push_back(warp);
  ready_[warp] |= 1u << (thread.number % 32);
}

void BlockRunner::WakePolling() {
  for (int i = 0; i < thread_count_; ++i) {
    DeviceThread& thread = *threads_[i];
    if (thread.state != ThreadState::kPolling || !thread.ready(thread.argument)) continue;
    --polling_;
    Wake(thread);
  }
}

void BlockRunner::Resume(DeviceThread& thread) {
  current_ = &thread;
  threadIdx = thread.index;
  LeaveStack(&hub_fake_stack_, thread.stack_bottom, thread.stack_bytes);
  EnterTsanFiber(thread.tsan_fiber, &hub_tsan_fiber_);
  thread.context = std::move(thread.context).resume();
  ArriveOnStack(hub_fake_stack_, nullptr, nullptr);
}

// ---- from a thread ----

void BlockRunner::ThreadMain(DeviceThread& thread, boost::context::fiber&& hub) {
  hub_ = std::move(hub);
  ArriveOnStack(thread.fake_stack, &hub_bottom_, &hub_bytes_);
  while (true) {
    work_->thread();
    --live_;
    Wait(ThreadState::kEnded, {"the kernel's end", 0});
  }
}

void BlockRunner::Wait(ThreadState state, const Place& place) {
  DeviceThread& thread = *current_;
  thread.state = state;
  thread.place = place;
  LeaveStack(&thread.fake_stack, hub_bottom_, hub_bytes_);
  LeaveTsanFiber(hub_tsan_fiber_);
  hub_ = std::move(hub_).resume();
  ArriveOnStack(thread.fake_stack, &hub_bottom_, &hub_bytes_);
}

void BlockRunner::Barrier(const Place& place) {
  current_->place = place;
  current_->state = ThreadState::kBarrier;
  if (++at_barrier_ == thread_count_) ReleaseBarrier();  // also wakes this one: it need not go on first
  Wait(current_->state, place);
}

void BlockRunner::ReleaseBarrier() {
  const Place& place = current_->place;
  for (int i = 0; i < thread_count_; ++i) {
    const Place& other = threads_[i]->place;
    if (other.line != place.line || std::strcmp(other.file, place.file) != 0) {
      KernelFault(place, "__syncthreads: threads stand at different places\n" + Report());
    }
  }
  at_barrier_ = 0;
  sticky_ = shuffler_.Below(2) == 0;
  last_warp_ = -1;
  for (int i = 0; i < thread_count_; ++i) Wake(*threads_[i]);
}

void BlockRunner::Named(int id, int thread_count, bool wait, const Place& place) {
  NamedBarrierState& named = named_[id];
  if (named.arrived > 0 && named.thread_count != thread_count) {
    KernelFault(place, "named barrier " + std::to_string(id) + ": " + std::to_string(thread_count) +
                           " threads here, others say " + std::to_string(named.thread_count));
  }
  named.thread_count = thread_count;
  if (++named.arrived < thread_count) {
    if (!wait) return;
    current_->barrier_id = id;
    Wait(ThreadState::kNamedBarrier, place);
    return;
  }
  named = {};
  for (int i = 0; i < thread_count_; ++i) {
    DeviceThread& thread = *threads_[i];
    if (thread.state == ThreadState::kNamedBarrier && thread.barrier_id == id) Wake(thread);
  }
}

void BlockRunner::Meet(uint32_t mask, void (*run)(uint32_t, LaneArguments, const Place&), void* argument,
                       const Place& place) {
  DeviceThread& own = *current_;
  const int warp = own.number / 32;
  const uint32_t bit = 1u << (own.number % 32);
  own.mask = mask;
  own.run = run;
  own.argument = argument;
  if ((mask & bit) == 0) KernelFault(place, "a warp intrinsic by a lane that its mask does not name");
  meeting_[warp] |= bit;
  bool complete = (mask & ~meeting_[warp]) == 0;
  void* arguments[32] = {};
  for (uint32_t lanes = mask; complete && lanes != 0; lanes &= lanes - 1) {
    const int lane = __builtin_ctz(lanes);
    const DeviceThread& other = *threads_[32 * warp + lane];
    if (other.mask != mask || other.run != run) complete = false;
    arguments[lane] = other.argument;
  }
  if (!complete) {
    Wait(ThreadState::kMeeting, place);
    return;
  }
  run(mask, arguments, place);
  meeting_[warp] &= ~mask;
  for (uint32_t lanes = mask & ~bit; lanes != 0; lanes &= lanes - 1) {
    Wake(*threads_[32 * warp + __builtin_ctz(lanes)]);
  }
}

void BlockRunner::Poll(bool (*ready)(void*), void* argument, const Place& place) {
  if (ready(argument)) return;
  current_->ready = ready;
  current_->argument = argument;
  ++polling_;
  Wait(ThreadState::kPolling, place);
}

// ---- faults ----

std::string BlockRunner::Report() const {
  static const char* const kNames[] = {"can run",
                                       "wait for the lanes of their mask",
                                       "wait at __syncthreads",
                                       "wait at a named barrier",
                                       "wait for memory",
                                       "have ended"};
  std::map<std::string, std::vector<int>> groups;
  for (int i = 0; i < thread_count_; ++i) {
    const DeviceThread& thread = *threads_[i];
    std::string what = kNames[static_cast<int>(thread.state)];
    if (thread.state == ThreadState::kMeeting) {
      char mask[24];
      std::snprintf(mask, sizeof(mask), " (0x%08x)", thread.mask);
      what += mask;
    }
    if (thread.state != ThreadState::kEnded) {
      what += std::string(", ") + thread.place.file + ":" + std::to_string(thread.place.line);
    }
    groups[what].push_back(i);
  }
  std::string report;
  for (const auto& [what, numbers] : groups) {
    report += "  " + std::to_string(numbers.size()) + " threads " + what + "; the first is " +
              std::to_string(numbers.front()) + "\n";
  }
  return report;
}

void BlockRunner::FillShared() {
  std::memset(shared_ - kGuardBytes, static_cast<int>(kGuard), kGuardBytes);
  std::memset(shared_, 0xff, work_->shared_bytes);
  std::memset(shared_ + work_->shared_bytes, static_cast<int>(kGuard), kGuardBytes);
}

void BlockRunner::CheckShared() const {
  const auto touched = [](const std::byte* from) {
    return std::any_of(from, from + kGuardBytes, [](std::byte b) { return b != kGuard; });
  };
  if (touched(shared_ - kGuardBytes)) KernelFault({"shared memory", 0}, "written before its start");
  if (touched(shared_ + work_->shared_bytes)) {
    KernelFault({"shared memory", 0}, "written past its " + std::to_string(work_->shared_bytes) + " bytes");
  }
}

}  // namespace cuda_on_host
