// The block's services to a kernel's thread (cuda_on_host/device_thread.h).

#include "cuda_on_host/device_thread.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/cuda_on_host/cluster_runner.h"

namespace cuda_on_host {

void KernelFault(const SourceLocation& location, const std::string& what) {
  std::fprintf(stderr, "kernel fault: %s:%d: %s\n", location.file, location.line, what.c_str());
  if (InKernel()) {
    std::fprintf(stderr, "  block (%u, %u, %u) of (%u, %u, %u), thread (%u, %u, %u) of (%u, %u, %u)\n",
                 blockIdx.x, blockIdx.y, blockIdx.z, gridDim.x, gridDim.y, gridDim.z, threadIdx.x,
                 threadIdx.y, threadIdx.z, blockDim.x, blockDim.y, blockDim.z);
  }
  std::abort();
}

bool InKernel() { return running != nullptr; }
int ThreadInBlock() { return running->current().number; }

void BlockBarrier(const SourceLocation& location) { running->Barrier(location); }

void NamedBarrier(int id, int thread_count, const SourceLocation& location) {
  running->Named(id, thread_count, location);
}

void MeetLanes(uint32_t mask, void (*run)(uint32_t, LaneArguments, const SourceLocation&), void* argument,
               const SourceLocation& location) {
  running->Meet(mask, run, argument, location);
}

void WaitUntil(bool (*ready)(void*), void* argument, const SourceLocation& location,
               std::string (*describe)(void*)) {
  running->Poll(ready, argument, location, describe);
}

void WaitForPeer(const PeerFlag& awaited, const SourceLocation& location) {
  running->PollPeer(awaited, location);
}
void WritePeer(void* to, const void* from, size_t bytes) { running->WritePeer(to, from, bytes); }
void FencePeers(const SourceLocation& location) {
  if (!SkipsFence(location)) running->FencePeers();
}

std::byte* SharedMemory() { return running->shared(); }
size_t SharedBytes() { return running->work().shared_bytes; }

uint32_t RankInCluster() { return running->rank(); }
int ThreadInCluster() { return static_cast<int>(running->rank()) * kMaxBlockThreads + ThreadInBlock(); }
static_assert(kMaxClusterThreads == kMaxClusterBlocks * kMaxBlockThreads);

void* InBlockOfCluster(void* own, uint32_t rank, const SourceLocation& location) {
  const std::ptrdiff_t offset = static_cast<std::byte*>(own) - SharedMemory();
  if (offset < 0 || offset >= static_cast<std::ptrdiff_t>(SharedBytes())) {
    KernelFault(location, "an address outside the block's shared memory");
  }
  return running->cluster().Target(rank, location).shared() + offset;
}

void ArriveAtCluster(const SourceLocation& location) { running->cluster().Arrive(location); }
void WaitForCluster(const SourceLocation& location) { running->cluster().Wait(location); }

void CountCopy(const void* shared, int begun, const SourceLocation& location) {
  running->cluster().OwnerOf(shared, location).CountCopy(begun);
}

bool ChecksAsyncProxy() {
  static const bool checks = std::getenv("FOREDRAFT_HOST_ASYNC_PROXY") != nullptr;
  return checks;
}

bool SkipsFence(const SourceLocation& location) {
  static const char* const skipped = std::getenv("FOREDRAFT_HOST_SKIP_FENCE");
  if (skipped == nullptr) return false;
  return (std::string(location.file) + ":" + std::to_string(location.line))
      .ends_with(std::string("/") + skipped);
}

void FenceAsyncProxy(const SourceLocation& location) {
  if (SkipsFence(location)) return;
  if (AsyncProxy* const proxy = running->async_proxy()) proxy->Fence(ThreadInBlock() / 32);
}

// Blocks that do not run have nothing to attribute.
AsyncProxyEngine::AsyncProxyEngine() : checks_(running->async_proxy() != nullptr) {}
void AsyncProxyEngine::Check(const void* first, size_t bytes, const SourceLocation& location,
                             const char* what) const {
  running->cluster().OwnerOf(first, location).checked_proxy().Access(first, bytes, location, what);
}
void AsyncProxyEngine::Written(const void* first, size_t bytes, const SourceLocation& location) const {
  running->cluster().OwnerOf(first, location).checked_proxy().Written(first, bytes);
}
void AsyncProxyEngine::Stored(const void* first, size_t bytes, const SourceLocation& location) const {
  running->cluster().OwnerOf(first, location).checked_proxy().Stored(first, bytes);
}

bool ChecksGlobalOrder() {
  static const bool checks = std::getenv("FOREDRAFT_HOST_GLOBAL_ORDER") != nullptr;
  return checks;
}

void GlobalWrite(const void* address, size_t bytes) {
  if (ChecksGlobalOrder()) running->order().Write(ThreadInBlock(), address, bytes);
}

void GlobalRead(const void* address, size_t bytes, const SourceLocation& location) {
  if (ChecksGlobalOrder()) running->order().Read(ThreadInBlock(), address, bytes, location);
}

void GlobalFence(const SourceLocation& location) {
  if (ChecksGlobalOrder() && !SkipsFence(location)) running->order().Fence(ThreadInBlock());
}

void GlobalAtomic(const void* address) {
  if (!ChecksGlobalOrder()) return;
  const std::byte* const byte = static_cast<const std::byte*>(address);
  if (byte >= SharedMemory() && byte < SharedMemory() + SharedBytes()) return;
  running->order().Atomic(ThreadInBlock(), address);
}

void WaitForPredecessor() { running->WaitForPredecessor(); }

CopyEngine::CopyEngine() : was_open_(running->OpenDeviceMemory(true)) {}
CopyEngine::~CopyEngine() { running->OpenDeviceMemory(was_open_); }
bool CopyEngine::ThreadMayTouch() { return running->current().may_touch; }

void StartCopy(void* shared, const void* global, size_t bytes, bool valid, const SourceLocation& location) {
  BlockRunner& runner = *running;
  const std::byte* to = static_cast<const std::byte*>(shared);
  if (to < runner.shared() || to + bytes > runner.shared() + runner.work().shared_bytes) {
    KernelFault(location, "cp.async: the destination is not in the block's shared memory");
  }
  if (reinterpret_cast<uintptr_t>(shared) % bytes != 0) {
    KernelFault(location, "cp.async: the destination is not aligned");
  }
  if (valid && reinterpret_cast<uintptr_t>(global) % bytes != 0) {
    KernelFault(location, "cp.async: the source is not aligned");
  }
  std::memset(shared, 0xff, bytes);  // until the copy completes
  DeviceThread& thread = runner.current();
  thread.copies.push_back({shared, valid ? global : nullptr, bytes, thread.open_group});
}

void CommitCopies() { ++running->current().open_group; }

void AwaitCopies(int pending_groups) {
  DeviceThread& thread = running->current();
  const int done = thread.open_group - pending_groups;  // groups below it
  size_t count = 0;
  for (; count < thread.copies.size() && thread.copies[count].group < done; ++count) {
    const PendingCopy& copy = thread.copies[count];
    if (copy.from != nullptr) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
  }
  thread.copies.erase(thread.copies.begin(), thread.copies.begin() + static_cast<std::ptrdiff_t>(count));
}

}  // namespace cuda_on_host
