#ifndef FOREDRAFT_KERNELS_CUDA_CUDA_MEMORY_H_
#define FOREDRAFT_KERNELS_CUDA_CUDA_MEMORY_H_

// All memory of one GPU that this process holds, counted by purpose, so that a refusal can show the sum.
// Owner: CudaDevice. Thread-safe.

#include <cuda_runtime.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

// A failed call is not the user's fault, and an error of the device stays: what it computes from then on is
// worth nothing. Logs CUDA's words and aborts.
void CheckCuda(cudaError_t error, const char* what);

class CudaMemory {
 public:
  // device_name: for refusals.
  explicit CudaMemory(std::string device_name) : device_name_(std::move(device_name)) {}
  ~CudaMemory();  // frees all of it
  CudaMemory(const CudaMemory&) = delete;
  CudaMemory& operator=(const CudaMemory&) = delete;

  // 256-byte aligned, undefined content, lives as long as this unless freed. RESOURCE_EXHAUSTED shows the
  // arithmetic.
  absl::StatusOr<void*> Allocate(size_t bytes, std::string_view purpose);
  void Free(void* memory);

  // Page-locked memory of the host: copies from and to it do not wait.
  absl::StatusOr<void*> AllocatePinned(size_t bytes);
  void FreePinned(void* memory);

  // An op had to do without memory: the first reason stays. From then on Launch launches nothing.
  void Fail(const absl::Status& reason);
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  absl::Status status() const;

  // What Device::Allocate is counted under from now on.
  void set_purpose(std::string_view purpose);
  std::string purpose() const;

  // From now on Allocate is a broken invariant: a serving engine has all it needs.
  void Freeze();
  bool frozen() const;

  struct Figures {
    int64_t free_bytes = 0;
    int64_t total_bytes = 0;
  };
  Figures figures() const;

 private:
  struct Block {
    void* memory;
    size_t bytes;
    std::string purpose;
  };

  std::string Arithmetic(size_t bytes, std::string_view purpose) const;  // needs mutex_

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

#endif  // FOREDRAFT_KERNELS_CUDA_CUDA_MEMORY_H_
