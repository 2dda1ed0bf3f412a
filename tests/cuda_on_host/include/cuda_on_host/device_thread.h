#pragma once

// The services of a block for its threads: their indices, barriers, warp intrinsics, shared memory. Threads
// are fibers (block_runner.cc); each of these calls may switch to another one.

#include <cstddef>
#include <cstdint>
#include <string>

#include "cuda_on_host/vector_types.h"

// Set before a thread is resumed.
inline thread_local constinit uint3 threadIdx = {};
inline thread_local constinit uint3 blockIdx = {};
inline thread_local constinit dim3 blockDim;
inline thread_local constinit dim3 gridDim;
inline constexpr int warpSize = 32;

namespace cuda_on_host {

struct SourceLocation {
  const char* file;
  int line;
};

// Reports a kernel fault with the thread and the source location, and aborts.
[[noreturn]] void KernelFault(const SourceLocation& location, const std::string& what);

// Whether the emulated GPU has Hopper's instructions (FOREDRAFT_HOST_CAPABILITY).
bool EmulatesHopper();

// True on a kernel's thread.
bool InKernel();
// The current thread's index in the block, x fastest.
int ThreadInBlock();

// Waits for all threads of the block, at the same line. Aborts if one of them has ended or waits elsewhere.
void BlockBarrier(const SourceLocation& location);
// A named barrier of `thread_count` threads (a multiple of 32): bar.sync id, count. Threads may wait at
// different lines.
void NamedBarrier(int id, int thread_count, const SourceLocation& location);

// Waits until all lanes in `mask` have called this with the same mask and `run`; then `run` is called once,
// with the arguments of all of them.
using LaneArguments = void* const (&)[32];
void MeetLanes(uint32_t mask, void (*run)(uint32_t mask, LaneArguments lanes, const SourceLocation& location),
               void* argument, const SourceLocation& location);

// Runs other threads until `ready(argument)`: for waits on memory (mbarriers). Aborts if no thread can run;
// the report then contains `describe(argument)`, if present.
void WaitUntil(bool (*ready)(void* argument), void* argument, const SourceLocation& location,
               std::string (*describe)(void* argument) = nullptr);

// A flag that another rank's kernel stores, in numbers that ascend by one.
struct PeerFlag {
  const uint64_t* flag;
  uint64_t value;
  const uint32_t* over;  // not 0: nothing is awaited any more

  bool ready() const { return *flag - value <= 1 || __atomic_load_n(over, __ATOMIC_ACQUIRE) != 0; }
};

// As WaitUntil, on memory that another rank's kernel writes. Kernels of the ranks run one after another, so
// where only such waits are left the block is given up, and runs again from its start when the others have
// had their turn: what it did before the wait must be harmless to repeat.
void WaitForPeer(const PeerFlag& awaited, const SourceLocation& location);
// Writes another rank's memory: at the fence, or the end of the block, that orders it before what follows.
void WritePeer(void* to, const void* from, size_t bytes);
// A fence.acq_rel.sys of the current thread: behind it are its writes, and those that a barrier has joined.
void FencePeers(const SourceLocation& location);

// The block's dynamic shared memory.
std::byte* SharedMemory();
size_t SharedBytes();

inline constexpr int kMaxClusterThreads = 8 * 1024;
// The block's place in its cluster, and the current thread's, below kMaxClusterThreads.
uint32_t RankInCluster();
int ThreadInCluster();
// What block `rank` of the cluster has where this one has `own`, in its shared memory. Aborts if there is no
// such block, or it has ended.
void* InBlockOfCluster(void* own, uint32_t rank, const SourceLocation& location);
// A barrier of all threads of the cluster: those of blocks that have ended are missing.
void ArriveAtCluster(const SourceLocation& location);
void WaitForCluster(const SourceLocation& location);
// A copy to this address of the cluster's shared memory begins (1) or arrives (-1). Aborts if its block ends
// before it has arrived.
void CountCopy(const void* shared, int begun, const SourceLocation& location);

// Whether the async proxy's accesses to shared memory are checked (FOREDRAFT_HOST_ASYNC_PROXY; slow).
bool ChecksAsyncProxy();
// Whether the fence at this place is left out: the one that FOREDRAFT_HOST_SKIP_FENCE names: the end of a
// path, a colon and a line.
bool SkipsFence(const SourceLocation& location);
// A fence.proxy.async of the current thread.
void FenceAsyncProxy(const SourceLocation& location);
// In scope while the async proxy works for a thread of the block.
class AsyncProxyEngine {
 public:
  AsyncProxyEngine();
  // These bytes are read. Aborts if a thread wrote one of them without a fence.
  void Read(const void* first, size_t bytes, const SourceLocation& location) const {
    if (checks_) Check(first, bytes, location, "the async proxy reads");
  }
  // These bytes are written: before, which aborts likewise, and after.
  void BeginWrite(const void* first, size_t bytes, const SourceLocation& location) const {
    if (checks_) Check(first, bytes, location, "the async proxy overwrites");
  }
  void EndWrite(const void* first, size_t bytes, const SourceLocation& location) const {
    if (checks_) Written(first, bytes, location);
  }
  // A thread of another block has written these bytes, through the generic proxy: a thread of this one has to
  // fence them.
  void EndStore(const void* first, size_t bytes, const SourceLocation& location) const {
    if (checks_) Stored(first, bytes, location);
  }

 private:
  void Check(const void* first, size_t bytes, const SourceLocation& location, const char* what) const;
  void Written(const void* first, size_t bytes, const SourceLocation& location) const;
  void Stored(const void* first, size_t bytes, const SourceLocation& location) const;

  const bool checks_;
};

// Whether reads of what other blocks of the grid wrote are checked (FOREDRAFT_HOST_GLOBAL_ORDER; slow). The
// calls below do nothing unless they are.
bool ChecksGlobalOrder();
// The current thread writes or reads device memory for, or from, other blocks.
void GlobalWrite(const void* address, size_t bytes);
void GlobalRead(const void* address, size_t bytes, const SourceLocation& location);
// A fence.acq_rel.gpu of the current thread.
void GlobalFence(const SourceLocation& location);
// An atomic operation of the current thread; nothing for one on shared memory.
void GlobalAtomic(const void* address);

// GridDependencyWait of a kernel with a programmatic launch.
void WaitForPredecessor();

// In scope while TMA is emulated, which may read device memory for a thread before its GridDependencyWait.
class CopyEngine {
 public:
  CopyEngine();
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;
  // True if the current thread has called GridDependencyWait, or need not.
  static bool ThreadMayTouch();

 private:
  const bool was_open_;
};

// Asynchronous copies of the current thread (cp.async): performed at the wait, not earlier.
void StartCopy(void* shared, const void* global, size_t bytes, bool valid, const SourceLocation& location);
void CommitCopies();
void AwaitCopies(int pending_groups);

}  // namespace cuda_on_host

#define CUDA_ON_HOST_CALLER const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_ON_HOST_CALLER) { cuda_on_host::BlockBarrier({file, line}); }

// The offset in the block's shared memory, from a base that is not 0.
inline size_t __cvta_generic_to_shared(const void* pointer) {
  return static_cast<size_t>(static_cast<const std::byte*>(pointer) - cuda_on_host::SharedMemory()) + 1024;
}
