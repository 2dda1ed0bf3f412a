#ifndef FOREDRAFT_KERNELS_CUDA_CUDA_STREAM_H_
#define FOREDRAFT_KERNELS_CUDA_CUDA_STREAM_H_

// The CUDA backend's stream and graph, and Launch, the one way a kernel is started.
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
//  - grids depend on shapes alone, never on values in device memory.
// tests/cuda_on_host builds the same files for the host and runs them there.
//
// Owner: whoever asked the device for it. Thread: one at a time.

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

#include "kernels/device.h"

namespace foredraft {

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // dynamic; above 48 KB the limit is raised
  bool after_previous =
      false;  // programmatic dependent launch: the kernel calls GridDependencyWait before it reads
};

// What SameNodes compares, kept beside CUDA's own graph.
struct CudaNode {
  const void* kernel = nullptr;
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;
  std::vector<std::byte> params;
};

class CudaStream : public Stream {
 public:
  ~CudaStream() override = default;

  virtual cudaStream_t handle() const = 0;
  virtual bool capturing() const = 0;

  // Device memory for the inside of one op: at least `bytes`, 1024-byte aligned, undefined content. The next
  // op on this stream gets the same memory. It grows while the engine warms up; a graph keeps the address it
  // saw, so what was handed out is never freed.
  virtual void* Scratch(size_t bytes) = 0;

  // Called before a launch: raises the kernel's shared memory limit, and notes the node while capturing.
  virtual void Note(const void* kernel, const LaunchShape& shape, const void* params, size_t bytes) = 0;
  // CHECKs that CUDA took what was submitted.
  virtual void Submitted(cudaError_t error, const char* what) = 0;

  int multiprocessor_count() const { return multiprocessor_count_; }

 protected:
  int multiprocessor_count_ = 0;
};

template <class Params>
void Launch(Stream& stream, void (*kernel)(Params), const LaunchShape& shape, const Params& params) {
  static_assert(std::is_trivially_copyable_v<Params>, "a graph node stores the parameters as bytes");
  if (shape.grid.x == 0 || shape.grid.y == 0 || shape.grid.z == 0) return;  // no rows
  auto& cuda = static_cast<CudaStream&>(stream);
  Params copy = params;
  __builtin_clear_padding(&copy);
  cuda.Note(reinterpret_cast<const void*>(kernel), shape, &copy, sizeof(Params));
  cudaLaunchConfig_t config = {};
  config.gridDim = shape.grid;
  config.blockDim = shape.block;
  config.dynamicSmemBytes = shape.shared_bytes;
  config.stream = cuda.handle();
  cudaLaunchAttribute attribute = {};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  config.attrs = &attribute;
  config.numAttrs = shape.after_previous ? 1 : 0;
  cuda.Submitted(cudaLaunchKernelEx(&config, kernel, copy), "launch");
}

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CUDA_CUDA_STREAM_H_
