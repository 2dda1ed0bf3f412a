#ifndef FOREDRAFT_KERNELS_CUDA_CUDA_STREAM_H_
#define FOREDRAFT_KERNELS_CUDA_CUDA_STREAM_H_

// The CUDA backend's stream, and Launch, the one way a kernel is started.
//
// Rules for kernels (files kernels/cuda/*.cu):
//  - one trivially copyable parameter struct, taken as `const __grid_constant__ P p`; the graph node stores
//  its bytes,
//    so every pointer in it stays where it is for the life of the device;
//  - shared memory is one struct, SharedStorage<T>() of kernels/cuda/ptx.h, sizeof(T) passed as shared_bytes;
//  - inline PTX stands in kernels/cuda/ptx.h only, behind named functions;
//  - no printf, no assert, no dynamic allocation, no FP atomics, no warp intrinsic without a full or computed
//  mask;
//  - the code is built with --fmad=false: a product and a sum fuse only where fmaf says so;
//  - grids depend on shapes alone, never on values in device memory;
//  - every thread calls AfterPrevious() (or GridDependencyWait()) before it reads or writes global memory.
//  Only
//    what no kernel writes, weights, may be asked for earlier.
//
// Programmatic dependent launch: a kernel that Launch puts right behind another one of Launch's may start
// while that one runs; the wait at its top makes it the same as if it had not, but for the time its blocks
// take to start, and for what it does before the wait. Why that is right for a chain A, B, C: B's blocks may
// start when all of A's have come to their GridDependencyLaunch or ended, and B's wait ends when A has ended
// and its writes are seen. A ends only when all its threads have, of which some have waited for what came
// before A: so the wait covers all that came before. A kernel lets its successor start after its own wait, so
// that there are never more than two at once. Writes come after the wait, too: B cannot overwrite what A
// still reads. Where something else comes between (a copy, a library's kernel, an event: Fork, Join, the
// start of a capture), the next launch is an ordinary one, which waits for everything: Launch sees to it. So
// in a graph only the edge between two kernels of one branch is programmatic, and those at a fork or join are
// full ones. No __ldg, no const __restrict__: such loads may find a line from before the wait; constants
// alone may have them. tests/cuda_on_host builds the same files for the host and runs them there.
//
// Owner: whoever asked the device for it. Thread: one at a time.

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_memory.h"
#include "kernels/device.h"

namespace foredraft {

class TunedGemms;

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic; above 48 KB the limit is raised
};

// What SameNodes compares, kept beside CUDA's own graph.
struct CudaNode {
  const void* kernel = nullptr;  // or, of a library's kernels, the function that was called
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  std::vector<std::byte> params;
};

class CudaStream : public Stream {
 public:
  // `memory` and `tuned_gemms` (or null) outlive the stream.
  CudaStream(CudaMemory& memory, int multiprocessor_count, TunedGemms* tuned_gemms = nullptr);
  ~CudaStream() override;  // waits for what runs

  void Synchronize() override;
  // A stream of its own, made at the first fork; in a capture, two branches of the graph. Its ops have
  // scratch memory of their own.
  Stream& Fork() override;
  void Join() override;

  // For whatever is not a kernel of Launch's: the next kernel waits for all of it.
  cudaStream_t handle() {
    behind_kernel_ = false;
    return handle_;
  }
  // For Launch alone. `programmatic`: the kernel comes right behind another one.
  cudaStream_t HandleForKernel(bool& programmatic) {
    programmatic = std::exchange(behind_kernel_, true);
    return handle_;
  }
  bool capturing() const { return capturing_; }
  bool failed() const { return memory_.failed(); }
  int multiprocessor_count() const { return multiprocessor_count_; }
  TunedGemms* tuned_gemms() const { return tuned_gemms_; }

  // Device memory for the inside of one op: at least `bytes`, 1024-byte aligned, undefined content. The next
  // op on this stream gets the same memory. It grows while the engine warms up; a graph keeps the address it
  // saw, so what a capture was given is never freed. Where there is no more, the device has failed
  // (Device::status), and the address is nobody's.
  void* Scratch(size_t bytes);

  // Called before a launch: raises the kernel's shared memory limit, and notes the node while capturing. A
  // call into a library notes itself likewise, with that function's address and no shared memory.
  void Note(const void* kernel, const LaunchShape& shape, const void* params, size_t bytes);
  // CHECKs that CUDA took what was submitted.
  void Submitted(cudaError_t error, const char* what) { CheckCuda(error, what); }

  // By way of page-locked memory, so the host's bytes are free at once; waits only when the device is
  // kStagingChunks chunks behind.
  void CopyToDevice(void* device, const void* host, size_t bytes);

  // Thread-local capture: what other threads do to the device meanwhile is their affair.
  void BeginCapture();
  // The graph belongs to the caller.
  cudaGraph_t EndCapture(std::vector<CudaNode>& nodes);

 private:
  struct StagingChunk {
    unsigned char* memory = nullptr;  // [kStagingChunkBytes], page-locked; made at first use
    cudaEvent_t passed = nullptr;     // recorded after the chunk's last copy
    size_t used = 0;
  };
  static constexpr size_t kStagingChunkBytes = size_t{1} << 20;
  static constexpr int kStagingChunks = 4;

  void GrowScratch(size_t bytes);
  // The chunk to write to, with room for at least one byte.
  StagingChunk& Staging();

  CudaMemory& memory_;
  const int multiprocessor_count_;
  TunedGemms* const tuned_gemms_;
  cudaStream_t handle_ = nullptr;

  void* scratch_ = nullptr;        // as allocated
  size_t scratch_bytes_ = 0;       // after alignment
  bool scratch_captured_ = false;  // some graph holds its address

  std::array<StagingChunk, kStagingChunks> staging_;
  int staging_index_ = 0;

  std::map<const void*, size_t> shared_limits_;  // of kernels raised above the default
  bool behind_kernel_ = false;                   // what was submitted last is a kernel of Launch's
  bool capturing_ = false;
  std::vector<CudaNode> nodes_;  // of the capture that runs

  std::unique_ptr<CudaStream> branch_;
  bool branch_open_ = false;
  cudaEvent_t forked_ = nullptr;
  cudaEvent_t joined_ = nullptr;
};

template <class Params>
void Launch(Stream& stream, void (*kernel)(Params), const LaunchShape& shape, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>, "a graph node stores the parameters as bytes");
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;  // no rows
  auto& cuda = static_cast<CudaStream&>(stream);
  if (cuda.failed()) return;
  Params copy = params;
  __builtin_clear_padding(&copy);
  cuda.Note(reinterpret_cast<const void*>(kernel), shape, &copy, sizeof(Params));
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  bool programmatic = false;
  config.stream = cuda.HandleForKernel(programmatic);
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = programmatic ? 1 : 0;
  cuda.Submitted(cudaLaunchKernelEx(&config, kernel, copy), "launch");
}

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CUDA_CUDA_STREAM_H_
