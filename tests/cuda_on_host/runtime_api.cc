// Errors, device, memory, copies and launches of cuda_on_host/runtime_api.h.

#include "cuda_on_host/runtime_api.h"

#include <cstdlib>
#include <cstring>
#include <new>
#include <string>
#include <utility>

#include "tests/cuda_on_host/grid_runner.h"
#include "tests/cuda_on_host/runtime_state.h"

namespace cuda_on_host {
namespace {

thread_local cudaError_t last_error = cudaSuccess;
thread_local int current_device = 0;

constexpr int kGuardedRuns = 2;  // per kernel, because opening and closing memory is expensive
constexpr int kDefaultSharedBytes = 48 * 1024;

// The GPU that is emulated: by default Hopper's.
struct Gpu {
  const char* capability;
  int major, minor;
  size_t shared_bytes;  // largest of a block
};
constexpr Gpu kGpus[] = {{"9.0", 9, 0, kMaxSharedBytes},
                         {"8.0", 8, 0, 166912},
                         {"8.9", 8, 9, 101376},
                         {"10.0", 10, 0, kMaxSharedBytes},
                         {"12.0", 12, 0, 101376}};

const Gpu& EmulatedGpu() {
  static const Gpu& gpu = []() -> const Gpu& {
    const char* const wanted = std::getenv("FOREDRAFT_HOST_CAPABILITY");
    if (wanted == nullptr) return kGpus[0];
    for (const Gpu& known : kGpus) {
      if (std::strcmp(known.capability, wanted) == 0) return known;
    }
    KernelFault({"FOREDRAFT_HOST_CAPABILITY", 0}, "allowed 9.0, 8.0, 8.9, 10.0, 12.0");
  }();
  return gpu;
}

bool Pinned(const RuntimeState& state, const void* pointer, size_t bytes) {
  auto at = state.pinned.upper_bound(pointer);
  if (at == state.pinned.begin()) return false;
  --at;
  return static_cast<const std::byte*>(pointer) + bytes <=
         static_cast<const std::byte*>(at->first) + at->second;
}

// Checks that the two sides of a copy match `kind` and are inside one allocation.
bool Legal(const RuntimeState& state, const void* pointer, size_t bytes, bool device, cudaMemcpyKind kind) {
  if (kind == cudaMemcpyDefault) device = state.memory.Inside(pointer);
  return device ? state.memory.Holds(pointer, bytes) : !state.memory.Inside(pointer);
}

cudaError_t CheckCopy(const RuntimeState& state, const void* to, const void* from, size_t bytes,
                      cudaMemcpyKind kind) {
  const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  return Legal(state, to, bytes, to_device, kind) && Legal(state, from, bytes, from_device, kind)
             ? cudaSuccess
             : cudaErrorInvalidValue;
}

bool LegalShape(const dim3& grid, const dim3& block) {
  return grid.x >= 1 && grid.y >= 1 && grid.z >= 1 && block.x >= 1 && block.y >= 1 && block.z >= 1 &&
         grid.x <= 0x7fffffffu && grid.y <= 65535 && grid.z <= 65535 && block.x <= 1024 && block.y <= 1024 &&
         block.z <= 64 && static_cast<uint64_t>(block.x) * block.y * block.z <= kMaxBlockThreads;
}

}  // namespace

bool EmulatesHopper() { return EmulatedGpu().major == 9; }

RuntimeState& State() {
  static RuntimeState& state = *new RuntimeState;  // streams may outlive static objects
  return state;
}

cudaError_t Result(cudaError_t error) {
  if (error != cudaSuccess) last_error = error;
  return error;
}

Counts CurrentCounts() {
  const LockedState state;
  return state->counts;
}

void SetSeed(uint64_t seed) {
  const LockedState state;
  state->shuffler = Shuffler(seed);
}

void SetDeviceMemory(size_t bytes) {
  const LockedState state;
  state->memory_bytes = bytes;
}

void SetGraphMemory(size_t bytes) {
  const LockedState state;
  state->graph_bytes = bytes;
}

void SetPinnedMemory(size_t bytes) {
  const LockedState state;
  state->pinned_limit = bytes;
}

size_t PinnedBytes() {
  const LockedState state;
  return state->pinned_bytes;
}

void SetDeviceCount(int count) {
  const LockedState state;
  state->device_count = count;
}

void SetKernelImages(bool there) {
  const LockedState state;
  state->kernel_images = there;
}

int CurrentDevice() { return current_device; }

cudaError_t Enqueue(cudaStream_t stream, std::function<void()> work) {
  const LockedState state;
  return Result(Append(*state, stream, std::move(work)));
}

cudaError_t Launch(const cudaLaunchConfig_t& config, const void* kernel, std::function<void()> thread) {
  const LockedState state;
  if (!state->kernel_images) return Result(cudaErrorNoKernelImageForDevice);
  if (!LegalShape(config.gridDim, config.blockDim)) return Result(cudaErrorInvalidConfiguration);
  const auto limit = state->shared_limits.find(kernel);
  const int shared_limit = limit != state->shared_limits.end() ? limit->second : kDefaultSharedBytes;
  if (config.dynamicSmemBytes > static_cast<size_t>(shared_limit)) return Result(cudaErrorInvalidValue);
  bool programmatic = false;
  unsigned int cluster = 1;
  for (unsigned i = 0; i < config.numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config.attrs[i];
    if (attribute.id == cudaLaunchAttributeProgrammaticStreamSerialization && EmulatedGpu().major >= 9) {
      programmatic = attribute.val.programmaticStreamSerializationAllowed != 0;
    } else if (attribute.id == cudaLaunchAttributeClusterDimension && EmulatedGpu().major >= 9 &&
               attribute.val.clusterDim.y == 1 && attribute.val.clusterDim.z == 1) {
      cluster = attribute.val.clusterDim.x;
      if (cluster < 1 || cluster > kMaxClusterBlocks || config.gridDim.x % cluster != 0)
        return Result(cudaErrorInvalidClusterSize);
    } else if (attribute.id != cudaLaunchAttributeIgnore) {
      return Result(cudaErrorNotSupported);
    }
  }
  CUstream_st& stream = StreamOf(config.stream);
  if (programmatic && !stream.after_kernel) {
    KernelFault({"a launch", 0}, "a programmatic launch that does not follow a kernel");
  }
  if (stream.capture == nullptr) {
    ++state->counts.launches;
    if (programmatic) ++state->counts.programmatic_launches;
  }
  const cudaError_t error = AppendWork(
      *state, config.stream,
      [&state = *state, thread = std::move(thread), grid = config.gridDim, block = config.blockDim, cluster,
       shared = config.dynamicSmemBytes, programmatic, kernel, open = std::shared_ptr<GridWork>()]() mutable {
        if (open == nullptr) {
          open = std::make_shared<GridWork>();
          open->thread = thread;
          open->grid = grid;
          open->block = block;
          open->cluster = cluster;
          open->shared_bytes = shared;
          open->programmatic = programmatic;
          if (programmatic && state.guarded_runs[kernel]++ < kGuardedRuns) {
            open->guarded_memory = &state.memory;
          }
          open->seed = state.shuffler.Next();
        }
        if (!RunGrid(*open)) return false;
        open.reset();
        return true;
      });
  stream.after_kernel = error == cudaSuccess;
  return Result(error);
}

}  // namespace cuda_on_host

using cuda_on_host::Append;
using cuda_on_host::CaptureForbids;
using cuda_on_host::LockedState;
using cuda_on_host::Result;
using cuda_on_host::StreamOf;

// ---- errors, device ----

const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration:
      return "cudaErrorInvalidConfiguration";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice:
      return "cudaErrorInvalidDevice";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady:
      return "cudaErrorNotReady";
    case cudaErrorNotSupported:
      return "cudaErrorNotSupported";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    case cudaErrorStreamCaptureUnjoined:
      return "cudaErrorStreamCaptureUnjoined";
    case cudaErrorStreamCaptureIsolation:
      return "cudaErrorStreamCaptureIsolation";
    default:
      return "cudaErrorUnknown";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }

cudaError_t cudaGetLastError() { return std::exchange(cuda_on_host::last_error, cudaSuccess); }
cudaError_t cudaPeekAtLastError() { return cuda_on_host::last_error; }

cudaError_t cudaGetDeviceCount(int* count) {
  const LockedState state;
  *count = state->device_count;
  return cudaSuccess;
}
cudaError_t cudaGetDevice(int* device) {
  *device = cuda_on_host::current_device;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int device) {
  const LockedState state;
  if (device < 0 || device >= state->device_count) return Result(cudaErrorInvalidDevice);
  cuda_on_host::current_device = device;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return Result(cudaErrorInvalidDevice);
  snprintf(id, static_cast<size_t>(length), "0000:%02X:00.0", 0x1b + device);
  return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  int count = 0;
  cudaGetDeviceCount(&count);
  if (device < 0 || device >= count) return Result(cudaErrorInvalidDevice);
  *properties = {};
  std::strcpy(properties->name, "CUDA on the host");
  std::memset(properties->uuid.bytes, 0x40 + device, sizeof(properties->uuid.bytes));
  properties->totalGlobalMem = cuda_on_host::State().memory_bytes;
  properties->sharedMemPerBlock = cuda_on_host::kDefaultSharedBytes;
  properties->sharedMemPerBlockOptin = cuda_on_host::EmulatedGpu().shared_bytes;
  properties->sharedMemPerMultiprocessor = 233472;
  properties->regsPerBlock = 65536;
  properties->warpSize = 32;
  properties->maxThreadsPerBlock = cuda_on_host::kMaxBlockThreads;
  properties->major = cuda_on_host::EmulatedGpu().major;
  properties->minor = cuda_on_host::EmulatedGpu().minor;
  properties->multiProcessorCount =
      3;  // small and odd: grids of this size are fast and divide the work unevenly
  properties->l2CacheSize = 16 << 10;  // small, so that few copies of a weight exceed it
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  cudaDeviceProp properties;
  const cudaError_t error = cudaGetDeviceProperties(&properties, device);
  if (error != cudaSuccess) return error;
  switch (attribute) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = static_cast<int>(properties.sharedMemPerBlock);
      break;
    case cudaDevAttrMultiProcessorCount:
      *value = properties.multiProcessorCount;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = properties.major;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = properties.minor;
      break;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      *value = static_cast<int>(properties.sharedMemPerMultiprocessor);
      break;
    case cudaDevAttrL2CacheSize:
      *value = properties.l2CacheSize;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = static_cast<int>(properties.sharedMemPerBlockOptin);
      break;
    default:
      return Result(cudaErrorInvalidValue);
  }
  return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

cudaError_t cudaDeviceSynchronize() {
  const LockedState state;
  ++state->counts.syncs;
  if (CaptureForbids(*state)) return Result(cudaErrorStreamCaptureUnsupported);
  cuda_on_host::RunEverything(*state, cuda_on_host::current_device);
  return Result(cudaSuccess);
}

// ---- memory ----

cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  const LockedState state;
  ++state->counts.mallocs;
  *pointer = nullptr;
  if (CaptureForbids(*state)) return Result(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return Result(cudaSuccess);
  if (bytes > state->memory_bytes || state->bytes_in_use() > state->memory_bytes - bytes) {
    return Result(cudaErrorMemoryAllocation);
  }
  *pointer = state->memory.Allocate(bytes);
  state->owners[*pointer] = cuda_on_host::current_device;
  return Result(*pointer != nullptr ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaFree(void* pointer) {
  const LockedState state;
  if (pointer == nullptr) return Result(cudaSuccess);
  ++state->counts.frees;
  if (CaptureForbids(*state)) return Result(cudaErrorStreamCaptureUnsupported);
  cuda_on_host::RunEverything(*state, state->owners[pointer]);
  state->owners.erase(pointer);
  return Result(state->memory.Free(pointer) ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaMallocHost(void** pointer, size_t bytes, unsigned int) {
  const LockedState state;
  ++state->counts.mallocs;
  *pointer = nullptr;
  if (CaptureForbids(*state)) return Result(cudaErrorStreamCaptureUnsupported);
  if (bytes == 0) return Result(cudaSuccess);
  if (bytes > state->pinned_limit || state->pinned_bytes > state->pinned_limit - bytes) {
    return Result(cudaErrorMemoryAllocation);
  }
  *pointer = std::malloc(bytes);
  if (*pointer == nullptr) return Result(cudaErrorMemoryAllocation);
  std::memset(*pointer, 0xff, bytes);
  state->owners[*pointer] = cuda_on_host::current_device;
  state->pinned[*pointer] = bytes;
  state->pinned_bytes += bytes;
  return Result(cudaSuccess);
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
  return cudaMallocHost(pointer, bytes, flags);
}

cudaError_t cudaFreeHost(void* pointer) {
  const LockedState state;
  if (pointer == nullptr) return Result(cudaSuccess);
  ++state->counts.frees;
  const auto found = state->pinned.find(pointer);
  if (found == state->pinned.end()) return Result(cudaErrorInvalidValue);
  cuda_on_host::RunEverything(*state, state->owners[pointer]);
  state->owners.erase(pointer);
  state->pinned_bytes -= found->second;
  state->pinned.erase(found);
  std::free(pointer);
  return Result(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  const LockedState state;
  *total_bytes = state->memory_bytes;
  *free_bytes = state->memory_bytes - state->bytes_in_use();
  return Result(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const LockedState state;
  if (bytes == 0) return Result(cudaSuccess);
  const cudaError_t error = cuda_on_host::CheckCopy(*state, to, from, bytes, kind);
  if (error != cudaSuccess) return Result(error);
  const bool captured = StreamOf(stream).capture != nullptr;
  if (!captured) ++state->counts.copies;
  const bool pageable = !state->memory.Inside(from) && !cuda_on_host::Pinned(*state, from, bytes);
  if (pageable && !captured) {  // copied at once: the caller may change it when this returns
    const std::byte* first = static_cast<const std::byte*>(from);
    return Result(Append(*state, stream, [to, copy = std::vector<std::byte>(first, first + bytes)] {
      std::memcpy(to, copy.data(), copy.size());
    }));
  }
  return Result(Append(*state, stream, [to, from, bytes] { std::memmove(to, from, bytes); }));
}

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  const LockedState state;
  ++state->counts.copies;
  ++state->counts.syncs;
  if (bytes == 0) return Result(cudaSuccess);
  const cudaError_t error = cuda_on_host::CheckCopy(*state, to, from, bytes, kind);
  if (error != cudaSuccess) return Result(error);
  if (CaptureForbids(*state)) return Result(cudaErrorStreamCaptureUnsupported);
  cuda_on_host::RunBlockingStreams(*state);
  cuda_on_host::OpenMemory open(state->memory);
  std::memmove(to, from, bytes);
  return Result(cudaSuccess);
}

cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  const LockedState state;
  if (bytes == 0) return Result(cudaSuccess);
  if (!state->memory.Holds(to, bytes)) return Result(cudaErrorInvalidValue);
  if (StreamOf(stream).capture == nullptr) ++state->counts.memsets;
  return Result(Append(*state, stream, [to, value, bytes] { std::memset(to, value, bytes); }));
}

cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* memory) {
  const LockedState state;
  if (!state->owners.contains(memory)) return Result(cudaErrorInvalidValue);
  *handle = {};
  std::memcpy(handle->reserved, &memory, sizeof(memory));
  return Result(cudaSuccess);
}
cudaError_t cudaIpcOpenMemHandle(void**, cudaIpcMemHandle_t, unsigned int) {
  return Result(cudaErrorInvalidResourceHandle);  // the process has the memory itself
}
cudaError_t cudaIpcCloseMemHandle(void*) { return Result(cudaErrorInvalidValue); }

cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  {
    const LockedState state;
    if (CaptureForbids(*state)) return Result(cudaErrorStreamCaptureUnsupported);
    cuda_on_host::RunBlockingStreams(*state);
  }
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

// ---- launches ----

cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const LockedState state;
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) return Result(cudaSuccess);
  if (value < 0 || static_cast<size_t>(value) > cuda_on_host::EmulatedGpu().shared_bytes) {
    return Result(cudaErrorInvalidValue);
  }
  state->shared_limits[kernel] = value;
  return Result(cudaSuccess);
}

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  const LockedState state;
  const auto limit = state->shared_limits.find(kernel);
  *attributes = {};
  attributes->maxThreadsPerBlock = cuda_on_host::kMaxBlockThreads;
  attributes->numRegs = 64;
  attributes->maxDynamicSharedSizeBytes =
      limit != state->shared_limits.end() ? limit->second : cuda_on_host::kDefaultSharedBytes;
  return Result(cudaSuccess);
}
