#ifndef FOREDRAFT_TESTS_CUDA_ON_HOST_DEVICE_THREAD_H_
#define FOREDRAFT_TESTS_CUDA_ON_HOST_DEVICE_THREAD_H_

// What a thread of a kernel can ask of its block: who it is, barriers, meeting the other lanes of its warp,
// shared memory. Threads are fibers (block_runner.cc); each of these calls may switch to another one.

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

struct Place {
  const char* file;
  int line;
};

// The fault of a kernel: prints kernel thread and place, and aborts.
[[noreturn]] void KernelFault(const Place& place, const std::string& what);

// True on a kernel's thread.
bool InKernel();
// Of the current thread: its number in the block, x fastest.
int ThreadInBlock();

// Waits for all threads of the block, at the same place. Aborts when one of them has ended or waits
// elsewhere.
void BlockBarrier(const Place& place);
// A named barrier of `thread_count` threads (a multiple of 32), as bar.sync id, count. Threads may stand at
// different places.
void NamedBarrier(int id, int thread_count, const Place& place);
// As bar.arrive: counts, does not wait.
void NamedBarrierArrive(int id, int thread_count, const Place& place);

// Waits for all lanes in `mask` to come with the same mask and the same `run`; then `run` sees the arguments
// of all of them, once.
using LaneArguments = void* const (&)[32];
void MeetLanes(uint32_t mask, void (*run)(uint32_t mask, LaneArguments lanes, const Place& place),
               void* argument, const Place& place);

// Lets others run until `ready(argument)`: for waits on memory (mbarriers). Aborts when nothing can change.
void WaitUntil(bool (*ready)(void* argument), void* argument, const Place& place);

// The block's dynamic shared memory.
std::byte* SharedMemory();
size_t SharedBytes();

// The kernel was launched with leave to start before its predecessor ended, and now waits for it.
void WaitForPredecessor();

// While one lives, the copy engine is at work: it reads device memory also for a thread that has not waited
// for the predecessor.
class CopyEngine {
 public:
  CopyEngine();
  ~CopyEngine();
  CopyEngine(const CopyEngine&) = delete;
  CopyEngine& operator=(const CopyEngine&) = delete;
  // The current thread has waited for the predecessor, or need not.
  static bool ThreadMayTouch();

 private:
  const bool was_open_;
};

// Asynchronous copies of the current thread (cp.async): done at the wait, not before.
void StartCopy(void* shared, const void* global, size_t bytes, bool valid, const Place& place);
void CommitCopies();
void AwaitCopies(int pending_groups);

}  // namespace cuda_on_host

#define CUDA_ON_HOST_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

inline void __syncthreads(CUDA_ON_HOST_PLACE) { cuda_on_host::BlockBarrier({file, line}); }

// The offset in the block's shared memory, from a base that is not 0.
inline size_t __cvta_generic_to_shared(const void* pointer) {
  return static_cast<size_t>(static_cast<const std::byte*>(pointer) - cuda_on_host::SharedMemory()) + 1024;
}

#endif  // FOREDRAFT_TESTS_CUDA_ON_HOST_DEVICE_THREAD_H_
