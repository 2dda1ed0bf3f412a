#include "kernels/cuda/device/cuda_memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "kernels/cuda/device/spin_limit.h"

namespace foredraft {
namespace {

std::string Size(size_t bytes) {
  constexpr double kGiB = 1 << 30;
  constexpr double kMiB = 1 << 20;
  const double count = static_cast<double>(bytes);
  return count >= kGiB ? absl::StrFormat("%.2f GiB", count / kGiB)
                       : absl::StrFormat("%.2f MiB", count / kMiB);
}

}  // namespace

void CheckCuda(cudaError_t error, const char* what) {
  CHECK(error == cudaSuccess) << "cuda, " << what << ": " << cudaGetErrorString(error) << SpinLimitReport();
}

CudaMemory::~CudaMemory() {
  for (const Block& block : blocks_) CheckCuda(cudaFree(block.memory), "free");
  for (void* const memory : pinned_) CheckCuda(cudaFreeHost(memory), "free host memory");
}

absl::StatusOr<void*> CudaMemory::Allocate(size_t bytes, std::string_view purpose) {
  std::lock_guard<std::mutex> lock(mutex_);
  CHECK(!frozen_) << "device memory allocated after the warm-up: " << Size(bytes) << " for " << purpose;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();  // not sticky: this clears it
    return absl::ResourceExhaustedError(OutOfMemory(bytes, purpose));
  }
  CheckCuda(error, "allocate");
  blocks_.push_back({memory, bytes, std::string(purpose)});
  return memory;
}

void CudaMemory::Free(void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find_if(blocks_.begin(), blocks_.end(),
                                  [memory](const Block& block) { return block.memory == memory; });
  CHECK(found != blocks_.end());
  CheckCuda(cudaFree(memory), "free");
  blocks_.erase(found);
}

absl::StatusOr<void*> CudaMemory::AllocatePinned(size_t bytes) {
  CHECK(!frozen()) << "page-locked host memory allocated after the warm-up: " << Size(bytes);
  void* memory = nullptr;
  const cudaError_t error = cudaMallocHost(&memory, std::max<size_t>(bytes, 1));
  if (error == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    return absl::ResourceExhaustedError(
        absl::StrFormat("no page-locked host memory for %s (ulimit -l, or less RAM free)", Size(bytes)));
  }
  CheckCuda(error, "allocate host memory");
  std::lock_guard<std::mutex> lock(mutex_);
  pinned_.push_back(memory);
  return memory;
}

void CudaMemory::FreePinned(void* memory) {
  std::lock_guard<std::mutex> lock(mutex_);
  const auto found = std::find(pinned_.begin(), pinned_.end(), memory);
  CHECK(found != pinned_.end());
  CheckCuda(cudaFreeHost(memory), "free host memory");
  pinned_.erase(found);
}

void CudaMemory::set_purpose(std::string_view purpose) {
  std::lock_guard<std::mutex> lock(mutex_);
  purpose_ = purpose;
}

std::string CudaMemory::purpose() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return purpose_;
}

void CudaMemory::Freeze() {
  std::lock_guard<std::mutex> lock(mutex_);
  frozen_ = true;
}

bool CudaMemory::frozen() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return frozen_;
}

void CudaMemory::Fail(const absl::Status& reason) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (status_.ok()) status_ = reason;
  failed_ = true;
}

absl::Status CudaMemory::status() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return status_;
}

DeviceMemory CudaMemory::usage() const {
  size_t free_bytes = 0;
  size_t total_bytes = 0;
  CheckCuda(cudaMemGetInfo(&free_bytes, &total_bytes), "memory usage");
  return {static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

// "no memory on NVIDIA H200: need 80.00 GiB for KV cache, free 12.31 GiB of 139.80 GiB; held: weights 120.02
// GiB, ..."
std::string CudaMemory::OutOfMemory(size_t bytes, std::string_view purpose) const {
  const DeviceMemory now = usage();
  std::string text = absl::StrFormat("no memory on %s: need %s for %s, free %s of %s", device_name_,
                                     Size(bytes), purpose, Size(now.free_bytes), Size(now.total_bytes));
  std::vector<std::pair<std::string, size_t>> held;  // in order of first use
  for (const Block& block : blocks_) {
    auto entry = std::find_if(held.begin(), held.end(),
                              [&block](const auto& known) { return known.first == block.purpose; });
    if (entry == held.end()) entry = held.insert(held.end(), {block.purpose, 0});
    entry->second += block.bytes;
  }
  const char* separator = "; held: ";
  for (const auto& [known, sum] : held) {
    absl::StrAppendFormat(&text, "%s%s %s", separator, known, Size(sum));
    separator = ", ";
  }
  return text;
}

}  // namespace foredraft
