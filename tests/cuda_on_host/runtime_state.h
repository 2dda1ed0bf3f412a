#pragma once

// The state that the runtime's functions share. Guarded by `mutex`, which is held while kernels run.

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "cuda_on_host/runtime_api.h"
#include "tests/cuda_on_host/block_runner.h"
#include "tests/cuda_on_host/counts.h"
#include "tests/cuda_on_host/device_memory.h"

namespace cuda_on_host {

// What a stream or a node does. False: it waits for another rank (nccl.cc) and is called again.
using Work = std::function<bool()>;

struct GraphNode {
  Work run;
  std::vector<int> after;  // nodes that come before it
};

struct Capture {
  int number = 0;  // of the device's captures, from 1
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
  std::vector<GraphNode> nodes;
  std::set<cudaStream_t> streams;
};

// An entry of a stream: work, an event to record, or an event to wait for.
struct StreamItem {
  Work work;
  cudaEvent_t record = nullptr;
  cudaEvent_t wait = nullptr;
  uint64_t version = 0;  // the event's number of records
};

}  // namespace cuda_on_host

struct CUstream_st {
  int device = 0;                              // the current one of the thread that created it
  std::deque<cuda_on_host::StreamItem> items;  // not run yet
  bool non_blocking = false;
  bool after_kernel = false;  // the last entry is a kernel
  std::shared_ptr<cuda_on_host::Capture> capture;
  std::vector<int> tails;  // while capturing: the nodes before the next one
};

struct CUevent_st {
  uint64_t recorded = 0;
  uint64_t done = 0;
  cudaStream_t stream = nullptr;  // of the last record
  std::chrono::steady_clock::time_point time;
  std::shared_ptr<cuda_on_host::Capture> capture;  // recorded in this capture, after `tails`
  std::vector<int> tails;
};

struct CUgraph_st {
  std::vector<cuda_on_host::GraphNode> nodes;
};

struct CUgraphExec_st {
  std::shared_ptr<const std::vector<cuda_on_host::GraphNode>> nodes;
};

namespace cuda_on_host {

struct RuntimeState {
  std::mutex mutex;
  DeviceMemory memory;
  size_t memory_bytes = size_t{1} << 30;
  size_t graph_bytes = 0;  // of each executable graph
  size_t graph_count = 0;

  size_t bytes_in_use() const { return memory.bytes_in_use() + graph_count * graph_bytes; }
  Counts counts = {};
  CUstream_st null_stream;
  std::set<cudaStream_t> streams;
  std::set<cudaEvent_t> events;
  int device_count = 1;
  bool kernel_images = true;
  std::map<const void*, int> owners;     // device of an allocation, cudaMallocHost's included
  std::map<const void*, size_t> pinned;  // cudaMallocHost: first byte, bytes
  size_t pinned_limit = SIZE_MAX;        // of all cudaMallocHost
  size_t pinned_bytes = 0;
  std::map<const void*, int> shared_limits;        // by kernel: cudaFuncAttributeMaxDynamicSharedMemorySize
  std::map<const void*, int> guarded_runs;         // by kernel: GridWork::guarded_memory
  std::vector<std::shared_ptr<Capture>> captures;  // open ones
  std::map<int, int> captures_begun;               // by device
  Shuffler shuffler{20240607};
};

RuntimeState& State();

// The state, locked for the current scope.
class LockedState {
 public:
  RuntimeState* operator->() const { return &State(); }
  RuntimeState& operator*() const { return State(); }

 private:
  std::lock_guard<std::mutex> lock_{State().mutex};
};

// Sets cudaGetLastError's answer.
cudaError_t Result(cudaError_t error);

// The caller of the functions below holds the lock.
CUstream_st& StreamOf(cudaStream_t stream);  // null: the null stream
cudaError_t Append(RuntimeState& state, cudaStream_t stream, std::function<void()> work);
cudaError_t AppendWork(RuntimeState& state, cudaStream_t stream, Work work);
// Runs the stream's next item, or part of what that waits for. False: all of it waits for another rank.
bool RunOne(RuntimeState& state, CUstream_st& stream);
// These three release the lock while they wait for another rank.
void RunAll(RuntimeState& state, CUstream_st& stream);
void RunBlockingStreams(RuntimeState& state);  // the streams that a call on the null stream waits for
void RunEverything(RuntimeState& state, int device);
// The device of the calling thread.
int CurrentDevice();
// True if a capture forbids allocations and waits on this thread.
bool CaptureForbids(RuntimeState& state);

}  // namespace cuda_on_host
