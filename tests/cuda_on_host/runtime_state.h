#ifndef FOREDRAFT_TESTS_CUDA_ON_HOST_RUNTIME_STATE_H_
#define FOREDRAFT_TESTS_CUDA_ON_HOST_RUNTIME_STATE_H_

// What the runtime's functions share. Guarded by `mutex`, which is held while kernels run.

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

struct GraphNode {
  std::function<void()> run;
  std::vector<int> after;  // nodes that come before it
};

struct Capture {
  cudaStream_t origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  bool invalid = false;
  std::vector<GraphNode> nodes;
  std::set<cudaStream_t> streams;
};

// One entry of a stream: work, or an event to record, or one to wait for.
struct StreamItem {
  std::function<void()> work;
  cudaEvent_t record = nullptr;
  cudaEvent_t wait = nullptr;
  uint64_t version = 0;  // of the event: how often it had been recorded
};

}  // namespace cuda_on_host

struct CUstream_st {
  std::deque<cuda_on_host::StreamItem> items;  // not done yet
  bool non_blocking = false;
  bool behind_kernel = false;  // what was put on it last is a kernel
  std::shared_ptr<cuda_on_host::Capture> capture;
  std::vector<int> tails;  // while capturing: what the next node comes after
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
  std::map<const void*, size_t> pinned;            // cudaMallocHost: first byte, bytes
  std::map<const void*, int> shared_limits;        // by kernel: cudaFuncAttributeMaxDynamicSharedMemorySize
  std::map<const void*, int> guarded_runs;         // by kernel: GridWork::guarded_memory
  std::vector<std::shared_ptr<Capture>> captures;  // open ones
  Shuffler shuffler{20240607};
};

RuntimeState& State();

// Sets cudaGetLastError's answer.
cudaError_t Result(cudaError_t error);

// The functions below want the lock held.
CUstream_st& StreamOf(cudaStream_t stream);  // null: the null stream
cudaError_t Append(RuntimeState& state, cudaStream_t stream, std::function<void()> work);
void RunOne(RuntimeState& state, CUstream_st& stream);  // its next item, with what that waits for
void RunAll(RuntimeState& state, CUstream_st& stream);
void RunBlockingStreams(RuntimeState& state);  // what a call on the null stream waits for
void RunEverything(RuntimeState& state);
// This thread has a capture open that forbids allocations and waits.
bool CaptureForbids(RuntimeState& state);

}  // namespace cuda_on_host

#endif  // FOREDRAFT_TESTS_CUDA_ON_HOST_RUNTIME_STATE_H_
