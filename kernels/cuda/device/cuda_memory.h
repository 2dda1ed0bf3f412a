#pragma once

// All memory of one GPU that this process holds, counted by purpose, so that an out-of-memory error can list
// what holds it. Owner: CudaDevice. Thread-safe.

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device.h"

namespace foredraft {

// Logs CUDA's error message and aborts on an error: it is not the user's fault, and device errors are sticky,
// so later results would be invalid.
void CheckCuda(cudaError_t error, const char* what);

class CudaMemory {
 public:
  // device_name: for error messages.
  explicit CudaMemory(std::string device_name) : device_name_(std::move(device_name)) {}
  ~CudaMemory();  // frees all of it
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // 256-byte aligned, uninitialised, lives as long as this unless freed. RESOURCE_EXHAUSTED lists what holds
  // the memory.
  absl::StatusOr<void*> Allocate(size_t bytes, std::string_view purpose);
  void Free(void* memory);

  // Page-locked host memory: copies from and to it are asynchronous.
  absl::StatusOr<void*> AllocatePinned(size_t bytes);
  void FreePinned(void* memory);

  // Called when an op cannot get memory; keeps the first reason. From then on Launch launches nothing.
  void Fail(const absl::Status& reason);
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  absl::Status status() const;

  // The purpose under which Device::Allocate is counted from now on.
  void set_purpose(std::string_view purpose);
  std::string purpose() const;

  // After this, Allocate and AllocatePinned fail a CHECK: a serving engine allocates nothing.
  void Freeze();
  bool frozen() const;

  DeviceMemory usage() const;

 private:
  struct Block {
    void* memory;
    size_t bytes;
    std::string purpose;
  };

  std::string OutOfMemory(size_t bytes, std::string_view purpose) const;  // the caller holds mutex_

  const std::string device_name_;

  std::atomic<bool> failed_{false};

  mutable std::mutex mutex_;
  // Guarded by mutex_.
  std::vector<Block> blocks_;
  std::vector<void*> pinned_;
  std::string purpose_ = "other";
  bool frozen_ = false;
  absl::Status status_;
};

}  // namespace foredraft
