#include "kernels/cuda/device/cuda_stream.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "base/check.h"

namespace foredraft {
namespace {

constexpr size_t kSharedDefaultBytes = 48 * 1024;  // the limit of a kernel without cudaFuncSetAttribute
constexpr size_t kScratchGranule = size_t{1} << 20;
constexpr size_t kScratchAlignment = 1024;

// While one is in scope, a capturing thread may allocate and wait, which only the relaxed mode allows.
class RelaxedCapture {
 public:
  explicit RelaxedCapture(bool capturing) : capturing_(capturing) { Exchange(); }
  ~RelaxedCapture() { Exchange(); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  void Exchange() {
    if (capturing_) CheckCuda(cudaThreadExchangeStreamCaptureMode(&mode_), "capture mode");
  }

  const bool capturing_;
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// A kernel has one limit on a device, whichever stream launches it, so a smaller one that a second stream
// asks for must not replace it.
void RaiseSharedLimit(const void* kernel, size_t bytes) {
  static std::mutex& mutex = *new std::mutex;
  static auto& limits = *new std::map<std::pair<int, const void*>, size_t>;
  int device = 0;
  CheckCuda(cudaGetDevice(&device), "current device");
  std::lock_guard<std::mutex> lock(mutex);
  size_t& limit = limits[{device, kernel}];
  if (limit >= bytes) return;
  limit = bytes;
  CheckCuda(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "raise the shared memory of a kernel");
}

bool SameShape(const dim3& a, const dim3& b) { return a.x == b.x && a.y == b.y && a.z == b.z; }

bool SameNode(const CudaNode& a, const CudaNode& b) {
  return a.kernel == b.kernel && SameShape(a.shape.grid, b.shape.grid) &&
         SameShape(a.shape.block, b.shape.block) && a.shape.shared_bytes == b.shape.shared_bytes &&
         a.shape.cluster == b.shape.cluster && a.params == b.params;
}

constexpr std::chrono::microseconds kPollInterval(20);

}  // namespace

CudaStream::CudaStream(CudaMemory& memory, int multiprocessor_count, TunedGemms* tuned_gemms,
                       StreamOptions options)
    : memory_(memory),
      multiprocessor_count_(multiprocessor_count),
      tuned_gemms_(tuned_gemms),
      options_(options) {
  // Non-blocking: does not synchronise with the legacy default stream, which libraries may use.
  CheckCuda(cudaStreamCreateWithFlags(&handle_, cudaStreamNonBlocking), "create a stream");
}

CudaStream::~CudaStream() {
  CHECK(!capturing_ && !branch_open_);
  if (branch_ != nullptr) {
    branch_.reset();
    CheckCuda(cudaEventDestroy(forked_), "destroy an event");
    CheckCuda(cudaEventDestroy(joined_), "destroy an event");
  }
  CheckCuda(cudaStreamSynchronize(handle_), "finish a stream");
  if (scratch_ != nullptr && !scratch_captured_) memory_.Free(scratch_);
  if (zero_counters_ != nullptr && !zero_counters_captured_) memory_.Free(zero_counters_);
  if (staging_[0].memory != nullptr) {
    memory_.FreePinned(staging_[0].memory);
    for (const StagingChunk& chunk : staging_) CheckCuda(cudaEventDestroy(chunk.passed), "destroy an event");
  }
  CheckCuda(cudaStreamDestroy(handle_), "destroy a stream");
}

void CudaStream::Synchronize() {
  CHECK(!capturing_) << "synchronize inside a capture";
  CheckCuda(cudaStreamSynchronize(handle_), "synchronize");
}

Stream& CudaStream::Fork() {
  if (!options_.forks) return *this;
  CHECK(!branch_open_) << "a branch is open";
  if (branch_ == nullptr) {
    branch_ = std::make_unique<CudaStream>(memory_, multiprocessor_count_, tuned_gemms_,
                                           StreamOptions{.pdl = options_.pdl});
    CheckCuda(cudaEventCreateWithFlags(&forked_, cudaEventDisableTiming), "create an event");
    CheckCuda(cudaEventCreateWithFlags(&joined_, cudaEventDisableTiming), "create an event");
  }
  branch_open_ = true;
  branch_->capturing_ = capturing_;
  CheckCuda(cudaEventRecord(forked_, handle()), "fork");
  CheckCuda(cudaStreamWaitEvent(branch_->handle(), forked_, 0), "fork");
  return *branch_;
}

void CudaStream::Join() {
  if (!options_.forks) return;
  CHECK(branch_open_) << "no branch is open";
  branch_open_ = false;
  branch_->capturing_ = false;
  CheckCuda(cudaEventRecord(joined_, branch_->handle()), "join");
  CheckCuda(cudaStreamWaitEvent(handle(), joined_, 0), "join");
  std::move(branch_->nodes_.begin(), branch_->nodes_.end(), std::back_inserter(nodes_));
  branch_->nodes_.clear();
}

void* CudaStream::Scratch(size_t bytes) {
  if (bytes > scratch_bytes_) GrowScratch(bytes);
  if (scratch_ == nullptr) return reinterpret_cast<void*>(kScratchAlignment);
  scratch_captured_ |= capturing_;
  const uintptr_t address = reinterpret_cast<uintptr_t>(scratch_);
  return reinterpret_cast<void*>((address + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment);
}

void CudaStream::GrowScratch(size_t bytes) {
  const size_t rounded = (bytes + kScratchGranule - 1) / kScratchGranule * kScratchGranule;
  const RelaxedCapture relaxed(capturing_);
  // Ops in flight may use the old memory: cudaFree waits for them.
  if (scratch_ != nullptr && !scratch_captured_) memory_.Free(scratch_);
  const absl::StatusOr<void*> memory = memory_.Allocate(rounded + kScratchAlignment, "op workspace");
  if (!memory.ok()) memory_.Fail(memory.status());
  scratch_ = memory.ok() ? *memory : nullptr;
  scratch_bytes_ = memory.ok() ? rounded : 0;
  scratch_captured_ = false;
}

uint32_t* CudaStream::ZeroCounters() {
  zero_counters_captured_ |= capturing_;
  if (zero_counters_ != nullptr) return zero_counters_;
  const RelaxedCapture relaxed(capturing_);
  constexpr size_t kBytes = kZeroCounters * sizeof(uint32_t);
  const absl::StatusOr<void*> memory = memory_.Allocate(kBytes, "op workspace");
  if (!memory.ok()) {
    memory_.Fail(memory.status());
    return nullptr;
  }
  // Zeroed on a stream of its own: in a capture, handle_ would zero them only when the graph runs.
  cudaStream_t stream = nullptr;
  CheckCuda(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "create a stream");
  CheckCuda(cudaMemsetAsync(*memory, 0, kBytes, stream), "zero memory");
  CheckCuda(cudaStreamSynchronize(stream), "zero memory");
  CheckCuda(cudaStreamDestroy(stream), "destroy a stream");
  return zero_counters_ = static_cast<uint32_t*>(*memory);
}

void CudaStream::PrepareLaunch(const void* kernel, const LaunchShape& shape, const void* params,
                               size_t bytes) {
  if (shape.shared_bytes > kSharedDefaultBytes) RaiseSharedLimit(kernel, shape.shared_bytes);
  if (!capturing_) return;
  const auto* first = static_cast<const std::byte*>(params);
  nodes_.push_back({.kernel = kernel, .shape = shape, .params = {first, first + bytes}});
}

bool CudaStream::AllocateStaging() {
  if (staging_[0].memory != nullptr) return true;
  const absl::StatusOr<void*> memory = memory_.AllocatePinned(kStagingChunks * kStagingChunkBytes);
  if (!memory.ok()) {
    memory_.Fail(memory.status());
    return false;
  }
  for (int i = 0; i < kStagingChunks; ++i) {
    staging_[i].memory = static_cast<unsigned char*>(*memory) + i * kStagingChunkBytes;
    CheckCuda(cudaEventCreateWithFlags(&staging_[i].passed, cudaEventDisableTiming), "create an event");
  }
  return true;
}

CudaStream::StagingChunk& CudaStream::Staging() {
  StagingChunk* chunk = &staging_[staging_index_];
  if (chunk->used == kStagingChunkBytes) {
    CheckCuda(cudaEventRecord(chunk->passed, handle()), "record");
    staging_index_ = (staging_index_ + 1) % kStagingChunks;
    chunk = &staging_[staging_index_];
    CheckCuda(cudaEventSynchronize(chunk->passed), "wait for a copy");
    chunk->used = 0;
  }
  return *chunk;
}

void CudaStream::CopyToDevice(void* device, const void* host, size_t bytes) {
  CHECK(!capturing_) << "copy inside a capture";
  if (bytes == 0 || !AllocateStaging()) return;
  auto* to = static_cast<unsigned char*>(device);
  const auto* from = static_cast<const unsigned char*>(host);
  while (bytes > 0) {
    StagingChunk& chunk = Staging();
    const size_t piece = std::min(bytes, kStagingChunkBytes - chunk.used);
    unsigned char* const staged = chunk.memory + chunk.used;
    std::memcpy(staged, from, piece);
    CheckCuda(cudaMemcpyAsync(to, staged, piece, cudaMemcpyHostToDevice, handle()), "copy to the device");
    chunk.used += piece;
    to += piece;
    from += piece;
    bytes -= piece;
  }
}

void CudaStream::BeginCapture() {
  CHECK(!capturing_) << "capture inside a capture";
  CheckCuda(cudaStreamBeginCapture(handle(), cudaStreamCaptureModeThreadLocal), "begin a capture");
  capturing_ = true;
}

cudaGraph_t CudaStream::EndCapture(std::vector<CudaNode>& nodes) {
  CHECK(capturing_ && !branch_open_);
  capturing_ = false;
  cudaGraph_t graph = nullptr;
  CheckCuda(cudaStreamEndCapture(handle(), &graph), "end a capture");
  nodes = std::exchange(nodes_, {});
  return graph;
}

CudaGraph::CudaGraph(CudaStream& stream) {
  cudaGraph_t graph = stream.EndCapture(nodes_);
  CheckCuda(cudaGraphInstantiate(&executable_, graph, 0), "instantiate a graph");
  CheckCuda(cudaGraphDestroy(graph), "destroy a graph");  // the executable graph has its own copy
  // Without this, the first launch would upload it.
  CheckCuda(cudaGraphUpload(executable_, stream.handle()), "upload a graph");
}

CudaGraph::~CudaGraph() { CheckCuda(cudaGraphExecDestroy(executable_), "destroy a graph"); }

void CudaGraph::Replay(Stream& stream) const {
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  CHECK(!cuda_stream.capturing()) << "replay inside a capture";
  CheckCuda(cudaGraphLaunch(executable_, cuda_stream.handle()), "launch a graph");
}

bool CudaGraph::SameNodes(const Graph& other) const {
  const auto* graph = dynamic_cast<const CudaGraph*>(&other);
  return graph != nullptr &&
         std::equal(nodes_.begin(), nodes_.end(), graph->nodes_.begin(), graph->nodes_.end(), SameNode);
}

CudaEvent::CudaEvent() { CheckCuda(cudaEventCreateWithFlags(&event_, cudaEventDefault), "create an event"); }

CudaEvent::~CudaEvent() { CheckCuda(cudaEventDestroy(event_), "destroy an event"); }

void CudaEvent::Record(Stream& stream) {
  auto& cuda_stream = static_cast<CudaStream&>(stream);
  CHECK(!cuda_stream.capturing()) << "record inside a capture";
  CheckCuda(cudaEventRecord(event_, cuda_stream.handle()), "record");
}

bool CudaEvent::Wait(std::chrono::steady_clock::time_point deadline) const {
  while (true) {
    const cudaError_t state = cudaEventQuery(event_);
    if (state == cudaSuccess) return true;
    if (state != cudaErrorNotReady) CheckCuda(state, "wait for a step");
    if (std::chrono::steady_clock::now() >= deadline) return false;
    std::this_thread::sleep_for(kPollInterval);
  }
}

double CudaEvent::SecondsSince(const Event& earlier) const {
  float milliseconds = 0;
  CheckCuda(cudaEventElapsedTime(&milliseconds, static_cast<const CudaEvent&>(earlier).event_, event_),
            "measure");
  return milliseconds / 1e3;
}

}  // namespace foredraft
