#include "tests/cuda_on_host/block_runner.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <numeric>
#include <string>
#include <utility>

namespace cuda_on_host {
namespace {

constexpr size_t kStackBytes = 256 * 1024;
constexpr size_t kPage = 4096;
constexpr size_t kGuardBytes = 1024;
constexpr std::byte kGuard{0xa5};

}  // namespace

BlockRunner::BlockRunner() {
  shared_memory_ = std::make_unique<std::byte[]>(kMaxSharedBytes + 2 * kGuardBytes + 1024);
  const uintptr_t first = reinterpret_cast<uintptr_t>(shared_memory_.get()) + kGuardBytes;
  shared_ = reinterpret_cast<std::byte*>((first + 1023) / 1024 * 1024);
}

// ---- what runs next ----

void BlockRunner::Begin(GridWork& work, uint32_t number, ClusterRunner& cluster, uint32_t rank,
                        bool guarded) {
  running = this;
  guarded_ = guarded;
  work_ = &work;
  cluster_ = &cluster;
  rank_ = rank;
  copies_in_flight_ = 0;
  index_ = {number % work.grid.x, number / work.grid.x % work.grid.y, number / work.grid.x / work.grid.y};
  shuffler_ = Shuffler(work.seed ^ (number * 0x9e3779b97f4a7c15u));
  Prepare();
  FillShared();
  checks_async_proxy_ = ChecksAsyncProxy();
  if (checks_async_proxy_) async_proxy_.Begin(shared_, work.shared_bytes);
  if (ChecksGlobalOrder()) order_.Begin(number, thread_count_);
}

bool BlockRunner::RunSome() {
  running = this;
  blockIdx = index_;
  blockDim = work_->block;
  gridDim = work_->grid;
  if (polling_ > 0) WakePolling();
  if (ready_warps_.empty()) return false;
  OpenWarp();
  SwitchTo(NextThread());
  return true;
}

void BlockRunner::End() {
  CheckShared();
  FinishPeerWrites();
  if (copies_in_flight_ > 0) {
    KernelFault(location(), "the block has ended, and " + std::to_string(copies_in_flight_) +
                                " copies into its shared memory are on their way");
  }
}

std::vector<PeerFlag> BlockRunner::GiveUp() {
  std::vector<PeerFlag> awaited;
  OpenDeviceMemory(true);
  for (int i = 0; i < thread_count_; ++i) {
    DeviceThread& thread = *threads_[i];
    if (thread.state == ThreadState::kEnded) continue;
    if (thread.state == ThreadState::kPolling && thread.polls_peer) awaited.push_back(thread.awaited);
    Renew(thread);
  }
  peer_writes_.clear();
  return awaited;
}

void BlockRunner::Prepare() {
  const dim3 block = work_->block;
  thread_count_ = static_cast<int>(block.x * block.y * block.z);
  while (static_cast<int>(threads_.size()) < thread_count_) AddThread();
  warps_.resize((thread_count_ + 31) / 32);
  for (Warp& warp : warps_) {
    warp.ready = 0;
    warp.meetings.clear();
  }
  ready_warps_.clear();
  for (NamedBarrierState& named : named_) named = {};
  live_ = thread_count_;
  at_barrier_ = 0;
  polling_ = 0;
  polling_peers_ = 0;
  round_ = 0;
  open_warp_ = -1;
  lane_count_ = 0;
  sticky_ = shuffler_.Below(2) == 0;
  for (int i = 0; i < thread_count_; ++i) {
    DeviceThread& thread = *threads_[i];
    const unsigned number = static_cast<unsigned>(i);
    thread.index = {number % block.x, number / block.x % block.y, number / block.x / block.y};
    thread.may_touch = !guarded_;
    thread.copies.clear();
    thread.open_group = 0;
    thread.arrived_at_cluster = false;
    thread.location = {"the kernel's start", 0};
    Wake(thread);
  }
}

void BlockRunner::AddThread() {
  threads_.push_back(std::make_unique<DeviceThread>());
  DeviceThread& thread = *threads_.back();
  thread.number = static_cast<int>(threads_.size()) - 1;
  void* memory =
      mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kPage, PROT_NONE) != 0) {
    KernelFault({__FILE__, __LINE__}, "no memory for the stack of a thread");
  }
  thread.stack_bottom = static_cast<std::byte*>(memory) + kPage;
  thread.stack_bytes = kStackBytes - kPage;
  Renew(thread);
}

void BlockRunner::Renew(DeviceThread& thread) {
  RenewStack(thread.stack_bottom, thread.stack_bytes);
  RenewTsanFiber(thread.tsan_fiber);
  thread.fake_stack = nullptr;
  // Staggers the stacks: at the same offset in their pages they would compete for the same few cache sets.
  const size_t stagger = static_cast<size_t>(thread.number % 61) * 320;
  thread.context = boost::context::detail::make_fcontext(thread.stack_bottom + thread.stack_bytes - stagger,
                                                         thread.stack_bytes - stagger, &EnterThread);
}

// Chooses a random warp, or continues with the current one.
void BlockRunner::OpenWarp() {
  if (!sticky_ || open_warp_ < 0 || warps_[open_warp_].ready == 0) {
    open_warp_ = ready_warps_[shuffler_.Below(static_cast<uint32_t>(ready_warps_.size()))];
  }
  ready_warps_.erase(std::find(ready_warps_.begin(), ready_warps_.end(), open_warp_));
  uint32_t ready = std::exchange(warps_[open_warp_].ready, 0);
  lane_count_ = 0;
  for (; ready != 0; ready &= ready - 1) lanes_[lane_count_++] = __builtin_ctz(ready);
  for (int i = lane_count_ - 1; i > 0; --i) {
    std::swap(lanes_[i], lanes_[shuffler_.Below(static_cast<uint32_t>(i + 1))]);
  }
}

DeviceThread* BlockRunner::NextThread() {
  if (lane_count_ == 0) {
    const bool others_are_due = polling_ > 0 || work_->cluster > 1;
    if (ready_warps_.empty() || (others_are_due && shuffler_.Below(8) == 0)) return nullptr;
    OpenWarp();
  }
  return threads_[32 * open_warp_ + lanes_[--lane_count_]].get();
}

void BlockRunner::WakeLanes(int warp, uint32_t lanes) {
  if (warps_[warp].ready == 0) ready_warps_.push_back(warp);
  warps_[warp].ready |= lanes;
}

void BlockRunner::WakePolling() {
  for (int i = 0; i < thread_count_; ++i) {
    DeviceThread& thread = *threads_[i];
    if (thread.state != ThreadState::kPolling || !thread.ready(thread.ready_argument)) continue;
    --polling_;
    if (thread.polls_peer) --polling_peers_;
    thread.state = ThreadState::kRuns;
    Wake(thread);
  }
}

void BlockRunner::SwitchTo(DeviceThread* next) {
  DeviceThread* const own = current_;
  if (next == own) return;
  if (checks_async_proxy_ && own != nullptr && (next == nullptr || next->number / 32 != own->number / 32)) {
    async_proxy_.Attribute(own->number / 32);
  }
  current_ = next;
  OpenDeviceMemory(next == nullptr || next->may_touch);
  void** const save = own != nullptr ? &own->fake_stack : &hub_fake_stack_;
  if (next != nullptr) {
    threadIdx = next->index;
    LeaveStack(save, next->stack_bottom, next->stack_bytes);
    EnterTsanFiber(next->tsan_fiber.fiber, own == nullptr ? &hub_tsan_fiber_ : nullptr);
  } else {
    LeaveStack(save, hub_bottom_, hub_bytes_);
    EnterTsanFiber(hub_tsan_fiber_, nullptr);
  }
  const auto from = boost::context::detail::jump_fcontext(next != nullptr ? next->context : hub_, own);
  Arrive(*save, from);
}

// The first statement after a switch to a stack: saves the context that was left.
void BlockRunner::Arrive(void* fake_stack, boost::context::detail::transfer_t from) {
  const void* bottom = nullptr;
  size_t bytes = 0;
  ArriveOnStack(fake_stack, &bottom, &bytes);
  if (from.data != nullptr) {
    static_cast<DeviceThread*>(from.data)->context = from.fctx;
  } else {
    hub_ = from.fctx;
    hub_bottom_ = bottom;
    hub_bytes_ = bytes;
  }
}

void BlockRunner::EnterThread(boost::context::detail::transfer_t from) {
  running->Arrive(nullptr, from);
  running->ThreadMain();
}

// ---- from a thread ----

void BlockRunner::ThreadMain() {
  while (true) {
    work_->thread();
    --live_;
    Wait(ThreadState::kEnded, {"the kernel's end", 0});
  }
}

void BlockRunner::Wait(ThreadState state, const SourceLocation& location) {
  current_->state = state;
  current_->location = location;
  SwitchTo(NextThread());
  current_->state = ThreadState::kRuns;
}

void BlockRunner::Barrier(const SourceLocation& location) {
  current_->location = location;
  if (ChecksGlobalOrder()) order_.Arrive(current_->number, barrier_writes_);
  if (++at_barrier_ == thread_count_) ReleaseBarrier();  // wakes this thread, too; another may run first
  Wait(ThreadState::kBarrier, location);
}

void BlockRunner::ReleaseBarrier() {
  const SourceLocation& location = current_->location;
  for (int i = 0; i < thread_count_; ++i) {
    const SourceLocation& other = threads_[i]->location;
    if (other.line != location.line || std::strcmp(other.file, location.file) != 0) {
      KernelFault(location, "__syncthreads: threads wait at different lines\n" + Report());
    }
  }
  at_barrier_ = 0;
  ++round_;
  if (ChecksGlobalOrder()) {
    std::vector<int> all(thread_count_);
    std::iota(all.begin(), all.end(), 0);
    order_.Release(all, barrier_writes_);
  }
  sticky_ = shuffler_.Below(2) == 0;
  for (int first = 0; first < thread_count_; first += 32) {
    const int lanes = std::min(32, thread_count_ - first);
    WakeLanes(first / 32, lanes == 32 ? 0xffffffffu : (1u << lanes) - 1);
  }
}

void BlockRunner::Named(int id, int thread_count, const SourceLocation& location) {
  NamedBarrierState& named = named_[id];
  if (named.arrived > 0 && named.thread_count != thread_count) {
    KernelFault(location, "named barrier " + std::to_string(id) + ": " + std::to_string(thread_count) +
                              " threads here, others say " + std::to_string(named.thread_count));
  }
  named.thread_count = thread_count;
  if (ChecksGlobalOrder()) order_.Arrive(current_->number, named.writes);
  if (++named.arrived < thread_count) {
    current_->barrier_id = id;
    Wait(ThreadState::kNamedBarrier, location);
    return;
  }
  std::vector<int> waiting = {current_->number};
  for (int i = 0; i < thread_count_; ++i) {
    DeviceThread& thread = *threads_[i];
    if (thread.state == ThreadState::kNamedBarrier && thread.barrier_id == id) {
      thread.state = ThreadState::kRuns;
      Wake(thread);
      waiting.push_back(i);
    }
  }
  if (ChecksGlobalOrder()) order_.Release(waiting, named.writes);
  named = {};
}

void BlockRunner::Meet(uint32_t mask, void (*run)(uint32_t, LaneArguments, const SourceLocation&),
                       void* argument, const SourceLocation& location) {
  const int lane = current_->number % 32;
  const int warp_index = current_->number / 32;
  std::vector<Meeting>& meetings = warps_[warp_index].meetings;
  if ((mask >> lane & 1u) == 0) {
    KernelFault(location, "a warp intrinsic by a lane that its mask does not name");
  }
  size_t i = 0;
  while (i < meetings.size() && (meetings[i].mask != mask || meetings[i].run != run)) ++i;
  if (i == meetings.size()) meetings.push_back({mask, run, 0, {}});
  Meeting& meeting = meetings[i];
  meeting.arguments[lane] = argument;
  meeting.arrived |= 1u << lane;
  if (meeting.arrived != mask) {
    current_->mask = mask;
    Wait(ThreadState::kMeeting, location);
    return;
  }
  run(mask, meeting.arguments, location);
  if (i + 1 < meetings.size()) meetings[i] = meetings.back();
  meetings.pop_back();
  if (const uint32_t others = mask & ~(1u << lane); others != 0) WakeLanes(warp_index, others);
}

void BlockRunner::Poll(bool (*ready)(void*), void* argument, const SourceLocation& location,
                       std::string (*describe)(void*)) {
  if (ready(argument)) return;
  current_->ready = ready;
  current_->describe = describe;
  current_->ready_argument = argument;
  current_->polls_peer = false;
  ++polling_;
  Wait(ThreadState::kPolling, location);
}

void BlockRunner::PollPeer(const PeerFlag& awaited, const SourceLocation& location) {
  if (awaited.ready()) return;
  current_->awaited = awaited;
  current_->ready = [](void* argument) { return static_cast<const PeerFlag*>(argument)->ready(); };
  current_->describe = nullptr;
  current_->ready_argument = &current_->awaited;
  current_->polls_peer = true;
  ++polling_;
  ++polling_peers_;
  Wait(ThreadState::kPolling, location);
}

void BlockRunner::WritePeer(void* to, const void* from, size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(from);
  peer_writes_.push_back(
      {current_->number, round_, static_cast<std::byte*>(to), std::vector<std::byte>(first, first + bytes)});
}

void BlockRunner::FencePeers() {
  std::erase_if(peer_writes_, [this](const PeerWrite& write) {
    if (write.thread != current_->number && write.round >= round_) return false;
    std::copy(write.bytes.begin(), write.bytes.end(), write.to);
    return true;
  });
}

void BlockRunner::FinishPeerWrites() {
  for (const PeerWrite& write : peer_writes_) std::copy(write.bytes.begin(), write.bytes.end(), write.to);
  peer_writes_.clear();
}

void BlockRunner::WaitForPredecessor() {
  work_->waited.store(true, std::memory_order_relaxed);
  current_->may_touch = true;
  OpenDeviceMemory(true);
}

bool BlockRunner::OpenDeviceMemory(bool open) {
  if (!guarded_ || open == memory_open_) return open;
  memory_open_ = open;
  work_->guarded_memory->Guard(!open);
  return !open;
}

AsyncProxy* BlockRunner::async_proxy() {
  if (!checks_async_proxy_) return nullptr;
  if (current_ != nullptr) async_proxy_.Attribute(current_->number / 32);
  return &async_proxy_;
}

// ---- faults ----

std::string BlockRunner::Report() const {
  static const char* const kNames[] = {"run",
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
    if (thread.state == ThreadState::kPolling && thread.describe != nullptr)
      what += ", " + thread.describe(thread.ready_argument);
    if (thread.state != ThreadState::kEnded) {
      what += std::string(", ") + thread.location.file + ":" + std::to_string(thread.location.line);
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
  static const std::vector<std::byte> guard(kGuardBytes, kGuard);
  const auto touched = [](const std::byte* from) {
    return std::memcmp(from, guard.data(), kGuardBytes) != 0;
  };
  if (touched(shared_ - kGuardBytes)) KernelFault({"shared memory", 0}, "written before its start");
  if (touched(shared_ + work_->shared_bytes)) {
    KernelFault({"shared memory", 0}, "written past its " + std::to_string(work_->shared_bytes) + " bytes");
  }
}

}  // namespace cuda_on_host
