#pragma once

// The CUDA backend's stream, graph and event, and Launch, through which all kernels are launched.
//
// clang-format off
// Rules for kernels (files kernels/cuda/*.cu):
//  - one trivially copyable parameter struct, taken as `const __grid_constant__ P p`; a graph node stores its
//    bytes, so the memory that its pointers name lives as long as the device;
//  - shared memory is one struct, SharedStorage<T>() of kernels/cuda/common/ptx.h, sizeof(T) passed as shared_bytes;
//  - inline PTX only in kernels/cuda/common/ptx*.h, behind named functions;
//  - no printf, assert, dynamic allocation or FP atomics; warp intrinsics only with a full or computed mask;
//  - built with --fmad=false: a multiply and an add are fused only where the code calls fmaf;
//  - grids depend on shapes alone, never on values in device memory;
//  - every thread calls GridDependencySync() (or GridDependencyWait()) before it reads or writes global memory,
//    except that weights, which no kernel writes, may be loaded earlier;
//  - no __ldg and no const __restrict__ except for weights: such loads may hit a line cached before the wait.
// clang-format on
//
// clang-format off
// Programmatic dependent launch (PDL): a kernel launched directly after another one may start while that one still
// runs; GridDependencyWait makes the result the same as without PDL. It is correct for a chain A, B, C:
//  - B's blocks may start once every block of A has called GridDependencyLaunch or exited. B's wait returns when
//    A has completed and its writes are visible.
//  - A completes only after its own wait, so B's wait also covers everything before A.
//  - A kernel calls GridDependencyLaunch after its own wait, so at most two kernels run at once.
//  - Writes come after the wait, so B cannot overwrite what A still reads.
// clang-format on
// After anything else (a copy, a library's kernel, an event: Fork, Join, the start of a capture), Launch uses
// an ordinary launch, which waits for everything. So in a graph only edges between two kernels of one branch
// are programmatic; edges at a fork or join are full dependencies. Before Hopper all launches are ordinary.
//
// tests/cuda_on_host compiles the same files for the host and runs them there.
//
// Owner: the caller of CreateStream. Thread: one at a time.

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/device/capability.h"
#include "kernels/cuda/device/cuda_memory.h"
#include "kernels/device.h"

namespace foredraft {

class TunedGemms;

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;   // dynamic; PrepareLaunch raises the kernel's limit above 48 KB
  unsigned int cluster = 1;  // blocks of a cluster, adjacent in x; more than one from sm_90 on
};

// A graph node as SameNodes compares it.
struct CudaNode {
  const void* kernel = nullptr;  // or the called function, for library kernels
  LaunchShape shape;
  std::vector<std::byte> params;
};

struct StreamOptions {
  bool forks = false;  // DeviceOptions::side_stream
  bool pdl = true;     // DeviceOptions::pdl
};

class CudaStream : public Stream {
 public:
  // `memory` and `tuned_gemms` (or null) outlive the stream.
  CudaStream(CudaMemory& memory, int multiprocessor_count, TunedGemms* tuned_gemms = nullptr,
             StreamOptions options = {});
  ~CudaStream() override;  // waits for submitted work

  void Synchronize() override;
  // With `forks`, the branch is a second stream, created at the first fork; in a capture, a second branch of
  // the graph. It has its own scratch memory. Without `forks` it returns this stream, because a fork and a
  // join cost full dependencies.
  Stream& Fork() override;
  void Join() override;

  // The handle for work that does not go through Launch; the next Launch waits for all of it.
  cudaStream_t handle() {
    after_kernel_ = false;
    return handle_;
  }
  // The handle for Launch only. `programmatic` becomes whether the kernel directly follows another one and
  // may be launched programmatically.
  cudaStream_t HandleForKernel(bool& programmatic) {
    programmatic = std::exchange(after_kernel_, true) && options_.pdl && cuda::LaunchesProgrammatically();
    return handle_;
  }
  bool capturing() const { return capturing_; }
  bool failed() const { return memory_.failed(); }
  int multiprocessor_count() const { return multiprocessor_count_; }
  TunedGemms* tuned_gemms() const { return tuned_gemms_; }

  // Device memory for use within one op: at least `bytes`, 1024-byte aligned, uninitialised. The next op on
  // this stream gets the same memory. It grows during the warm-up; graphs keep its address, so memory used in
  // a capture is never freed. If the device is out of memory, it enters the failed state (Device::status),
  // and the returned address is invalid.
  void* Scratch(size_t bytes);

  // Counters in device memory, by which the blocks of a kernel find out which of them comes last. They are
  // zero before and after each kernel. Allocated at the first call, as Scratch.
  static constexpr int64_t kZeroCounters = 16384;
  uint32_t* ZeroCounters();

  // Called before a launch: raises the kernel's shared memory limit, and records the node while capturing. A
  // library call does the same with its function's address and no shared memory.
  void PrepareLaunch(const void* kernel, const LaunchShape& shape, const void* params, size_t bytes);

  // Copies through page-locked staging memory, so the caller may reuse `host` at once. Blocks only if the
  // device is kStagingChunks chunks behind. The first copy allocates that memory; if there is none, the
  // device enters the failed state and nothing is copied.
  void CopyToDevice(void* device, const void* host, size_t bytes);

  // Thread-local capture mode: other threads may use the device meanwhile.
  void BeginCapture();
  // The caller owns the graph.
  cudaGraph_t EndCapture(std::vector<CudaNode>& nodes);

 private:
  struct StagingChunk {
    unsigned char* memory = nullptr;  // [kStagingChunkBytes], page-locked; a part of one allocation
    cudaEvent_t passed = nullptr;     // recorded after the chunk's last copy
    size_t used = 0;
  };
  static constexpr size_t kStagingChunkBytes = size_t{1} << 20;
  static constexpr int kStagingChunks = 4;

  void GrowScratch(size_t bytes);
  bool AllocateStaging();
  // The chunk to write to, with at least one free byte.
  StagingChunk& Staging();

  CudaMemory& memory_;
  const int multiprocessor_count_;
  TunedGemms* const tuned_gemms_;
  const StreamOptions options_;
  cudaStream_t handle_ = nullptr;

  void* scratch_ = nullptr;        // as allocated
  size_t scratch_bytes_ = 0;       // after alignment
  bool scratch_captured_ = false;  // a graph holds its address
  uint32_t* zero_counters_ = nullptr;
  bool zero_counters_captured_ = false;

  std::array<StagingChunk, kStagingChunks> staging_;
  int staging_index_ = 0;

  bool after_kernel_ = false;  // the last submission was a Launch
  bool capturing_ = false;
  std::vector<CudaNode> nodes_;  // of the current capture

  std::unique_ptr<CudaStream> branch_;
  bool branch_open_ = false;
  cudaEvent_t forked_ = nullptr;
  cudaEvent_t joined_ = nullptr;
};

// A captured step, instantiated and uploaded, so a replay is one launch. Keeps the recorded nodes for
// SameNodes. The device must outlive it.
class CudaGraph : public Graph {
 public:
  // Ends the capture of `stream`.
  explicit CudaGraph(CudaStream& stream);
  ~CudaGraph() override;
  CudaGraph(const CudaGraph&) = delete;
  CudaGraph& operator=(const CudaGraph&) = delete;

  void Replay(Stream& stream) const override;
  size_t node_count() const override { return nodes_.size(); }
  bool SameNodes(const Graph& other) const override;

 private:
  std::vector<CudaNode> nodes_;
  cudaGraphExec_t executable_ = nullptr;
};

class CudaEvent : public Event {
 public:
  CudaEvent();
  ~CudaEvent() override;
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  void Record(Stream& stream) override;
  // Polls, because CUDA's own wait has no deadline. The polling delay does not idle the device: the next step
  // is already submitted.
  bool Wait(std::chrono::steady_clock::time_point deadline) const override;
  double SecondsSince(const Event& earlier) const override;

 private:
  cudaEvent_t event_ = nullptr;
};

template <class Params>
void Launch(Stream& stream, void (*kernel)(Params), const LaunchShape& shape, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>, "a graph node stores the parameters as bytes");
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;  // no rows
  auto& cuda = static_cast<CudaStream&>(stream);
  if (cuda.failed()) return;
  Params copy = params;
  __builtin_clear_padding(&copy);
  cuda.PrepareLaunch(reinterpret_cast<const void*>(kernel), shape, &copy, sizeof(Params));
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  bool programmatic = false;
  config.stream = cuda.HandleForKernel(programmatic);
  cudaLaunchAttribute attributes[2] = {};
  config.attrs = attributes;
  if (programmatic) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
  }
  if (shape.cluster > 1) {
    cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {shape.cluster, 1, 1};
  }
  CheckCuda(cudaLaunchKernelEx(&config, kernel, copy), "launch");
}

}  // namespace foredraft
