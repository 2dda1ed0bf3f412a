// Streams, events, capture and graphs of cuda_on_host/runtime_api.h.

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "tests/cuda_on_host/runtime_state.h"

namespace cuda_on_host {

CUstream_st& StreamOf(cudaStream_t stream) { return stream != nullptr ? *stream : State().null_stream; }

cudaError_t Append(RuntimeState& state, cudaStream_t handle, std::function<void()> work) {
  return AppendWork(state, handle, [work = std::move(work)] {
    work();
    return true;
  });
}

cudaError_t AppendWork(RuntimeState& state, cudaStream_t handle, Work work) {
  CUstream_st& stream = StreamOf(handle);
  stream.after_kernel = false;  // a launch sets it afterwards
  if (stream.capture == nullptr) {
    if (handle == nullptr && !state.captures.empty() && CaptureForbids(state)) {
      return cudaErrorStreamCaptureUnsupported;  // the null stream would wait for the capturing one
    }
    stream.items.push_back({.work = std::move(work)});
    return cudaSuccess;
  }
  Capture& capture = *stream.capture;
  capture.nodes.push_back({std::move(work), stream.tails});
  stream.tails = {static_cast<int>(capture.nodes.size()) - 1};
  return cudaSuccess;
}

bool RunOne(RuntimeState& state, CUstream_st& stream) {
  StreamItem& item = stream.items.front();
  if (item.wait != nullptr) {
    if (item.wait->done < item.version) return RunOne(state, StreamOf(item.wait->stream));
  } else if (item.record != nullptr) {
    item.record->done = std::max(item.record->done, item.version);
    item.record->time = std::chrono::steady_clock::now();
  } else {
    OpenMemory open(state.memory);
    if (!item.work()) return false;
  }
  stream.items.pop_front();
  return true;
}

namespace {

// For a caller whose work waits for another rank: runs one item of every stream, because the other ranks'
// devices run by themselves. Where all wait, lets another thread have the lock.
void LetOthersRun(RuntimeState& state) {
  bool ran = false;
  for (cudaStream_t stream : state.streams) {
    if (!stream->items.empty()) ran |= RunOne(state, *stream);
  }
  if (ran) return;
  state.mutex.unlock();
  std::this_thread::sleep_for(std::chrono::microseconds(20));
  state.mutex.lock();
}

}  // namespace

void RunAll(RuntimeState& state, CUstream_st& stream) {
  OpenMemory open(state.memory);
  while (!stream.items.empty()) {
    if (!RunOne(state, stream)) LetOthersRun(state);
  }
}

void RunBlockingStreams(RuntimeState& state) {
  RunAll(state, state.null_stream);
  const std::vector<cudaStream_t> streams(state.streams.begin(), state.streams.end());
  for (cudaStream_t stream : streams) {
    if (!stream->non_blocking && stream->device == CurrentDevice()) RunAll(state, *stream);
  }
}

void RunEverything(RuntimeState& state, int device) {
  OpenMemory open(state.memory);
  std::vector<CUstream_st*> open_streams;
  while (true) {
    open_streams.clear();
    if (!state.null_stream.items.empty()) open_streams.push_back(&state.null_stream);
    for (cudaStream_t stream : state.streams) {
      if (stream->device == device && !stream->items.empty()) open_streams.push_back(stream);
    }
    if (open_streams.empty()) return;
    CUstream_st& next = *open_streams[state.shuffler.Below(static_cast<uint32_t>(open_streams.size()))];
    if (!RunOne(state, next)) LetOthersRun(state);
  }
}

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

bool CaptureForbids(RuntimeState& state) {
  if (thread_mode == cudaStreamCaptureModeRelaxed) return false;
  for (const auto& capture : state.captures) {
    const bool ours = capture->thread == std::this_thread::get_id();
    if (capture->mode == cudaStreamCaptureModeGlobal ||
        (capture->mode == cudaStreamCaptureModeThreadLocal && ours)) {
      capture->invalid = true;
      return true;
    }
  }
  return false;
}

namespace {

// One launch of a graph: runs all nodes in a random order that the edges allow.
class GraphRun {
 public:
  explicit GraphRun(std::shared_ptr<const std::vector<GraphNode>> nodes)
      : nodes_(std::move(nodes)), missing_(nodes_->size()), next_(nodes_->size()) {
    for (size_t i = 0; i < nodes_->size(); ++i) {
      const std::vector<int>& after = (*nodes_)[i].after;
      missing_[i] = static_cast<int>(after.size());
      for (const int before : after) next_[before].push_back(static_cast<int>(i));
      if (missing_[i] == 0) ready_.push_back(static_cast<int>(i));
    }
  }

  // Runs on until the end (true), or until all nodes that could be next wait for another rank.
  bool Continue(RuntimeState& state) {
    size_t waiting = 0;  // the last ones of ready_
    while (ready_.size() > waiting) {
      const size_t open = ready_.size() - waiting;
      std::swap(ready_[state.shuffler.Below(static_cast<uint32_t>(open))], ready_[open - 1]);
      const int node = ready_[open - 1];
      if (!(*nodes_)[node].run()) {
        ++waiting;
        continue;
      }
      ready_.erase(ready_.begin() + static_cast<ptrdiff_t>(open) - 1);
      for (const int after : next_[node]) {
        if (--missing_[after] == 0) ready_.insert(ready_.begin(), after);
      }
    }
    return ready_.empty();
  }

 private:
  std::shared_ptr<const std::vector<GraphNode>> nodes_;
  std::vector<int> missing_;            // by node: how many before it have not run
  std::vector<std::vector<int>> next_;  // by node: those that come after it
  std::vector<int> ready_;
};

// Whether every captured node is before a tail of the stream on which the capture began.
bool Joined(const Capture& capture, const std::vector<int>& tails) {
  std::vector<char> seen(capture.nodes.size(), 0);
  std::vector<int> open = tails;
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    if (seen[node]) continue;
    seen[node] = 1;
    open.insert(open.end(), capture.nodes[node].after.begin(), capture.nodes[node].after.end());
  }
  return std::all_of(seen.begin(), seen.end(), [](char s) { return s != 0; });
}

}  // namespace
}  // namespace cuda_on_host

using cuda_on_host::Capture;
using cuda_on_host::LockedState;
using cuda_on_host::Result;
using cuda_on_host::StreamOf;

// ---- streams ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
  const LockedState state;
  *stream = new CUstream_st;
  (*stream)->device = cuda_on_host::CurrentDevice();
  (*stream)->non_blocking = (flags & cudaStreamNonBlocking) != 0;
  state->streams.insert(*stream);
  return Result(cudaSuccess);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags, int) {
  return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  const LockedState state;
  if (state->streams.erase(stream) == 0) return Result(cudaErrorInvalidResourceHandle);
  if (stream->capture != nullptr) return Result(cudaErrorStreamCaptureUnsupported);
  cuda_on_host::RunAll(*state, *stream);
  for (cudaEvent_t event : state->events) {
    if (event->stream == stream) event->stream = nullptr;
  }
  delete stream;
  return Result(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle) {
  const LockedState state;
  ++state->counts.syncs;
  CUstream_st& stream = StreamOf(handle);
  if (stream.capture != nullptr || cuda_on_host::CaptureForbids(*state)) {
    return Result(cudaErrorStreamCaptureUnsupported);
  }
  if (handle == nullptr) {
    cuda_on_host::RunBlockingStreams(*state);
  } else {
    cuda_on_host::RunAll(*state, stream);
  }
  return Result(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t handle) {
  const LockedState state;
  ++state->counts.queries;
  CUstream_st& stream = StreamOf(handle);
  if (stream.capture != nullptr) return Result(cudaErrorStreamCaptureUnsupported);
  if (!stream.items.empty() && !cuda_on_host::RunOne(*state, stream)) cuda_on_host::LetOthersRun(*state);
  return stream.items.empty() ? Result(cudaSuccess) : cudaErrorNotReady;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, void (*function)(void*), void* data) {
  const LockedState state;
  return Result(cuda_on_host::Append(*state, stream, [function, data] { function(data); }));
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int) {
  const LockedState state;
  *event = new CUevent_st;
  state->events.insert(*event);
  return Result(cudaSuccess);
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
  const LockedState state;
  if (state->events.count(event) == 0) return Result(cudaErrorInvalidResourceHandle);
  // Nothing waits for it afterwards.
  cuda_on_host::RunEverything(
      *state, event->stream != nullptr ? event->stream->device : cuda_on_host::CurrentDevice());
  state->events.erase(event);
  delete event;
  return Result(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t handle) {
  const LockedState state;
  CUstream_st& stream = StreamOf(handle);
  stream.after_kernel = false;
  event->capture = stream.capture;
  if (stream.capture != nullptr) {
    event->tails = stream.tails;
    return Result(cudaSuccess);
  }
  event->stream = handle;
  stream.items.push_back({.record = event, .version = ++event->recorded});
  return Result(cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t event, unsigned int) {
  const LockedState state;
  CUstream_st& stream = StreamOf(handle);
  stream.after_kernel = false;
  if (event->capture != nullptr) {
    if (stream.capture != nullptr && stream.capture != event->capture) {
      return Result(cudaErrorStreamCaptureIsolation);
    }
    if (stream.capture == nullptr) {
      stream.capture = event->capture;
      stream.capture->streams.insert(handle);
      stream.tails.clear();
    }
    for (const int node : event->tails) {
      if (std::find(stream.tails.begin(), stream.tails.end(), node) == stream.tails.end()) {
        stream.tails.push_back(node);
      }
    }
    return Result(cudaSuccess);
  }
  if (stream.capture != nullptr) return Result(cudaErrorStreamCaptureIsolation);
  if (event->recorded > event->done) stream.items.push_back({.wait = event, .version = event->recorded});
  return Result(cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const LockedState state;
  ++state->counts.syncs;
  if (event->capture != nullptr || cuda_on_host::CaptureForbids(*state)) {
    return Result(cudaErrorStreamCaptureUnsupported);
  }
  cuda_on_host::OpenMemory open(state->memory);
  while (event->done < event->recorded) {
    if (!cuda_on_host::RunOne(*state, StreamOf(event->stream))) cuda_on_host::LetOthersRun(*state);
  }
  return Result(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
  const LockedState state;
  ++state->counts.queries;
  if (event->capture != nullptr) return Result(cudaErrorStreamCaptureUnsupported);
  if (event->done < event->recorded && !cuda_on_host::RunOne(*state, StreamOf(event->stream))) {
    cuda_on_host::LetOthersRun(*state);
  }
  return event->done < event->recorded ? cudaErrorNotReady : Result(cudaSuccess);
}

cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
  const LockedState state;
  if (start->done < start->recorded || end->done < end->recorded) return cudaErrorNotReady;
  *ms = std::chrono::duration<float, std::milli>(end->time - start->time).count();
  return Result(cudaSuccess);
}

// ---- capture, graphs ----

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  const LockedState state;
  if (stream == nullptr || stream->capture != nullptr) return Result(cudaErrorStreamCaptureUnsupported);
  ++state->counts.captures;
  auto capture = std::make_shared<Capture>();
  capture->origin = stream;
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->streams.insert(stream);
  capture->number = ++state->captures_begun[cuda_on_host::CurrentDevice()];
  state->captures.push_back(capture);
  stream->capture = std::move(capture);
  stream->after_kernel = false;
  stream->tails.clear();
  return Result(cudaSuccess);
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  const LockedState state;
  *graph = nullptr;
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr || capture->origin != stream) return Result(cudaErrorInvalidValue);
  const bool joined = cuda_on_host::Joined(*capture, stream->tails);
  for (cudaStream_t each : capture->streams) {
    each->capture = nullptr;
    each->after_kernel = false;
    each->tails.clear();
  }
  for (cudaEvent_t event : state->events) {
    if (event->capture == capture) event->capture = nullptr;
  }
  std::erase(state->captures, capture);
  if (capture->invalid) return Result(cudaErrorStreamCaptureInvalidated);
  if (!joined) return Result(cudaErrorStreamCaptureUnjoined);
  *graph = new CUgraph_st{std::move(capture->nodes)};
  return Result(cudaSuccess);
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, cuda_on_host::thread_mode);
  return Result(cudaSuccess);
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  const LockedState state;
  *status = StreamOf(stream).capture != nullptr ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return Result(cudaSuccess);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
  if (nodes != nullptr) return Result(cudaErrorNotSupported);
  *count = graph->nodes.size();
  return Result(cudaSuccess);
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  const LockedState state;
  ++state->counts.instantiations;
  ++state->graph_count;
  *exec = new CUgraphExec_st{std::make_shared<const std::vector<cuda_on_host::GraphNode>>(graph->nodes)};
  return Result(cudaSuccess);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t, cudaStream_t) { return Result(cudaSuccess); }

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  const LockedState state;
  if (StreamOf(stream).capture != nullptr) return Result(cudaErrorStreamCaptureUnsupported);
  ++state->counts.graph_launches;
  return Result(cuda_on_host::AppendWork(
      *state, stream, [&state = *state, run = std::make_shared<cuda_on_host::GraphRun>(exec->nodes)] {
        return run->Continue(state);
      }));
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return Result(cudaSuccess);
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  const LockedState state;
  --state->graph_count;
  delete exec;
  return Result(cudaSuccess);
}
