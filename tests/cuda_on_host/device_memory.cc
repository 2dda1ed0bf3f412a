#include "tests/cuda_on_host/device_memory.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "cuda_on_host/device_thread.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(pointer, bytes) ((void)(pointer), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(pointer, bytes) ((void)(pointer), (void)(bytes))
#endif

namespace cuda_on_host {
namespace {

constexpr size_t kAlignment = 256;  // as in CUDA
constexpr size_t kGuardBytes = 256;
constexpr size_t kPage = size_t{2} << 20;  // protecting a huge page costs as much as protecting a small one
constexpr int kGuard = 0xa5;
constexpr size_t kCheapBytes = 256 * 1024;  // closing as much is cheap
constexpr int kSeldom = 16;

size_t RoundUp(size_t bytes, size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace

DeviceMemory::DeviceMemory() {
  void* memory =
      mmap(nullptr, kAddresses + kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) KernelFault({__FILE__, __LINE__}, "no addresses for the device's memory");
  first_ = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<size_t>(memory), kPage));
  madvise(first_, kAddresses, MADV_HUGEPAGE);
}

void* DeviceMemory::Allocate(size_t bytes) {
  const size_t whole = RoundUp(bytes, kAlignment) + kGuardBytes;
  if (whole > kAddresses - used_) return nullptr;
  std::byte* pointer = first_ + used_;
  used_ += whole;
  bytes_in_use_ += bytes;
  allocations_[pointer] = bytes;
  OpenMemory open(*this);
  Protect(PROT_READ | PROT_WRITE);
  ASAN_UNPOISON_MEMORY_REGION(pointer, whole);
  std::memset(pointer, 0xff, bytes);
  std::memset(pointer + bytes, kGuard, whole - bytes);
  ASAN_POISON_MEMORY_REGION(pointer + bytes, whole - bytes);
  return pointer;
}

bool DeviceMemory::Free(void* pointer) {
  const auto at = allocations_.find(static_cast<std::byte*>(pointer));
  if (at == allocations_.end()) return false;
  const size_t bytes = at->second;
  const size_t whole = RoundUp(bytes, kAlignment) + kGuardBytes;
  OpenMemory open(*this);
  ASAN_UNPOISON_MEMORY_REGION(at->first, whole);
  for (size_t i = bytes; i < whole; ++i) {
    if (at->first[i] != static_cast<std::byte>(kGuard)) {
      KernelFault({"device memory", 0}, "written past the end of an allocation of " + std::to_string(bytes) +
                                            " bytes, at byte " + std::to_string(i));
    }
  }
  std::memset(pointer, 0xff, bytes);
  ASAN_POISON_MEMORY_REGION(pointer, whole);
  bytes_in_use_ -= bytes;
  allocations_.erase(at);
  if (allocations_.empty()) {
    madvise(first_, RoundUp(used_, kPage), MADV_DONTNEED);
    Protect(PROT_NONE);
    used_ = 0;
    protected_bytes_ = 0;
  }
  return true;
}

bool DeviceMemory::Holds(const void* pointer, size_t bytes) const {
  const std::byte* first = static_cast<const std::byte*>(pointer);
  auto at = allocations_.upper_bound(first);
  if (at == allocations_.begin()) return false;
  --at;
  return first + bytes <= at->first + at->second;
}

void DeviceMemory::Open() {
  if (open_++ == 0) Protect(PROT_READ | PROT_WRITE);
}

void DeviceMemory::Close() {
  if (--open_ > 0) return;
  if (used_ <= kCheapBytes || ++closes_ % kSeldom == 0) Protect(PROT_NONE);
}

void DeviceMemory::Protect(int protection) {
  const size_t bytes = RoundUp(used_, kPage);
  if (bytes == 0 || (protection == protection_ && bytes == protected_bytes_)) return;
  mprotect(first_, bytes, protection);
  protection_ = protection;
  protected_bytes_ = bytes;
}

}  // namespace cuda_on_host
