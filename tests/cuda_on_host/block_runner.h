#pragma once

// Runs a block. Its threads are fibers of this host thread; they switch where they wait (barriers, warp
// intrinsics, polling), in an order drawn by a seeded generator.
//
// Owner and thread: a ClusterRunner, which has one for each block of its cluster.

#include <atomic>
#include <boost/context/fiber.hpp>
#include <boost/context/protected_fixedsize_stack.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cuda_on_host/device_thread.h"
#include "tests/cuda_on_host/async_proxy.h"
#include "tests/cuda_on_host/device_memory.h"
#include "tests/cuda_on_host/global_order.h"
#include "tests/cuda_on_host/sanitizer_fibers.h"

namespace cuda_on_host {

inline constexpr size_t kMaxSharedBytes = 232448;  // of a block on Hopper
inline constexpr int kMaxBlockThreads = 1024;
inline constexpr uint32_t kMaxClusterBlocks = 8;  // that every GPU with clusters allows

// A block that was given up, and what its threads wait for.
struct OpenBlock {
  uint32_t block;
  std::vector<PeerFlag> awaited;
};

struct GridWork {
  std::function<void()> thread;  // the body of each thread
  dim3 grid;
  dim3 block;
  uint32_t cluster = 1;  // blocks of a cluster, adjacent in x
  size_t shared_bytes = 0;
  bool programmatic = false;  // launched with programmatic stream serialization
  // Guarded: the first block runs alone, and its threads may access device memory only after
  // GridDependencyWait. Null: not checked.
  DeviceMemory* guarded_memory = nullptr;
  uint64_t seed = 0;
  std::atomic<bool> waited{false};  // a thread has called GridDependencyWait
  bool begun = false;
  std::vector<OpenBlock> open_blocks;  // where it has begun: those that have not ended
};

// splitmix64: small and good enough to shuffle with.
class Shuffler {
 public:
  explicit Shuffler(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint32_t Below(uint32_t count) { return static_cast<uint32_t>((Next() >> 32) * count >> 32); }

 private:
  uint64_t state_;
};

// A write to another rank's memory that no fence has made visible.
struct PeerWrite {
  int thread;
  uint32_t round;  // of the block's barriers
  std::byte* to;
  std::vector<std::byte> bytes;
};

struct PendingCopy {
  void* to;
  const void* from;  // null: zeros
  size_t bytes;
  int group;
};

enum class ThreadState { kRuns, kMeeting, kBarrier, kNamedBarrier, kPolling, kEnded };

// One thread of the block, and what it waits for.
struct DeviceThread {
  boost::context::detail::fcontext_t context = nullptr;  // while another one runs
  int number = 0;
  uint3 index = {};
  ThreadState state = ThreadState::kRuns;  // not updated while the lane is in its warp's `ready`
  SourceLocation location = {};
  uint32_t mask = 0;               // kMeeting
  int barrier_id = 0;              // kNamedBarrier
  bool (*ready)(void*) = nullptr;  // kPolling
  std::string (*describe)(void*) = nullptr;
  void* ready_argument = nullptr;
  bool polls_peer = false;
  PeerFlag awaited = {};

  bool may_touch = true;  // access device memory: in a guarded block, after GridDependencyWait

  std::vector<PendingCopy> copies;
  int open_group = 0;

  bool arrived_at_cluster = false;  // at its barrier, and not waited since
  uint32_t cluster_round = 0;       // of that barrier, at the arrival

  // For the sanitizers.
  std::byte* stack_bottom = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;
  TsanFiber tsan_fiber;
};

// Lanes that wait for each other in a warp intrinsic.
struct Meeting {
  uint32_t mask;
  void (*run)(uint32_t, LaneArguments, const SourceLocation&);
  uint32_t arrived;
  void* arguments[32];
};

struct Warp {
  uint32_t ready = 0;             // lanes that can run
  std::vector<Meeting> meetings;  // not complete
};

class ClusterRunner;

class BlockRunner {
 public:
  BlockRunner();
  BlockRunner(const BlockRunner&) = delete;
  BlockRunner& operator=(const BlockRunner&) = delete;

  // ---- from its cluster ----
  void Begin(GridWork& work, uint32_t number, ClusterRunner& cluster, uint32_t rank, bool guarded);
  // Runs threads that can run, some of them or all; false: none can.
  bool RunSome();
  bool ended() const { return live_ == 0; }
  void End();
  bool waits_for_peers() const { return polling_peers_ > 0; }
  // Ends a block that has not ended; returns what it waits for of other ranks.
  std::vector<PeerFlag> GiveUp();

  // ---- from a thread of the block ----
  DeviceThread& current() { return *current_; }
  ClusterRunner& cluster() { return *cluster_; }
  uint32_t rank() const { return rank_; }  // in its cluster
  int thread_count() const { return thread_count_; }
  GridWork& work() { return *work_; }
  std::byte* shared() { return shared_; }
  void Barrier(const SourceLocation& location);
  void Named(int id, int thread_count, const SourceLocation& location);
  void Meet(uint32_t mask, void (*run)(uint32_t, LaneArguments, const SourceLocation&), void* argument,
            const SourceLocation& location);
  void Poll(bool (*ready)(void*), void* argument, const SourceLocation& location,
            std::string (*describe)(void*));
  void PollPeer(const PeerFlag& awaited, const SourceLocation& location);
  void WritePeer(void* to, const void* from, size_t bytes);
  void FencePeers();
  void WaitForPredecessor();
  // Opens a guarded block's device memory for threads that may access it and for TMA; returns the old state.
  bool OpenDeviceMemory(bool open);
  // Null: not checked. What the current warp has written so far is attributed to it.
  AsyncProxy* async_proxy();
  AsyncProxy& checked_proxy() { return async_proxy_; }  // where it is not null
  // A copy into this block's shared memory begins, or arrives: no thread may leave it on its way.
  void CountCopy(int begun) { copies_in_flight_ += begun; }
  BlockOrder& order() { return order_; }  // where ChecksGlobalOrder()
  // A report of the waiting threads, a line per source location.
  std::string Report() const;
  const SourceLocation& location() const { return threads_[0]->location; }

 private:
  struct NamedBarrierState {
    int arrived = 0;
    int thread_count = 0;
    ArrivedWrites writes;  // where ChecksGlobalOrder()
  };

  void Prepare();
  void AddThread();
  // The thread begins anew: its context and its stack.
  void Renew(DeviceThread& thread);
  void FinishPeerWrites();
  [[noreturn]] void ThreadMain();
  static void EnterThread(boost::context::detail::transfer_t from);

  // The thread to run next: one of the current warp, else of another. Null: none can run, or polling threads
  // are due.
  DeviceThread* NextThread();
  void OpenWarp();
  void Arrive(void* fake_stack, boost::context::detail::transfer_t from);
  void SwitchTo(DeviceThread* next);                             // null: return to RunSome
  void Wait(ThreadState state, const SourceLocation& location);  // blocks the current thread until woken
  void Wake(DeviceThread& thread) { WakeLanes(thread.number / 32, 1u << (thread.number % 32)); }
  void WakeLanes(int warp, uint32_t lanes);
  void WakePolling();
  void ReleaseBarrier();
  void FillShared();
  void CheckShared() const;

  std::vector<std::unique_ptr<DeviceThread>> threads_;  // grows; the first thread_count_ are the block's
  boost::context::detail::fcontext_t hub_ = nullptr;    // of RunSome, while a thread runs
  DeviceThread* current_ = nullptr;                     // null: RunSome
  GridWork* work_ = nullptr;
  uint3 index_ = {};
  ClusterRunner* cluster_ = nullptr;
  uint32_t rank_ = 0;
  int copies_in_flight_ = 0;
  Shuffler shuffler_{0};
  bool guarded_ = false;
  bool memory_open_ = true;
  int thread_count_ = 0;
  int live_ = 0;
  int at_barrier_ = 0;
  int polling_ = 0;
  int polling_peers_ = 0;  // of these
  uint32_t round_ = 0;     // of the block's barriers
  std::vector<PeerWrite> peer_writes_;
  std::vector<Warp> warps_;
  std::vector<int> ready_warps_;  // those with ready lanes
  NamedBarrierState named_[16];
  bool sticky_ = false;  // a warp runs until it blocks before another starts
  // The current warp: the lanes that were ready when it was chosen, in a random order; then those woken
  // since.
  int open_warp_ = -1;
  int lanes_[32];
  int lane_count_ = 0;

  std::unique_ptr<std::byte[]> shared_memory_;
  std::byte* shared_ = nullptr;  // 1024-byte aligned, with a guard on both sides
  AsyncProxy async_proxy_;
  bool checks_async_proxy_ = false;
  BlockOrder order_;
  ArrivedWrites barrier_writes_;

  // For the sanitizers.
  const void* hub_bottom_ = nullptr;
  size_t hub_bytes_ = 0;
  void* hub_fake_stack_ = nullptr;
  void* hub_tsan_fiber_ = nullptr;
};

// The runner of the kernel on this host thread, if any.
inline thread_local constinit BlockRunner* running = nullptr;

}  // namespace cuda_on_host
