#include "kernels/cpu/device/host_memory.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <limits>
#include <utility>

namespace foredraft {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kSharedRegion = size_t{64} << 20;
constexpr size_t kOwnRegion =
    kSharedRegion / 4;  // allocations of at least this size get a region of their own

size_t RoundUp(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

#ifdef __SANITIZE_ADDRESS__
constexpr bool kUseCalloc = true;
#else
constexpr bool kUseCalloc = false;
#endif

}  // namespace

HostMemory::HostMemory(HostMemory&& other) noexcept
    : place_(std::move(other.place_)),
      regions_(std::exchange(other.regions_, {})),
      next_(std::exchange(other.next_, nullptr)),
      left_(std::exchange(other.left_, 0)) {}

HostMemory::~HostMemory() {
  for (const Region& region : regions_) {
    if (kUseCalloc) {
      std::free(region.base);
    } else {
      munmap(region.base, region.bytes);
    }
  }
}

void* HostMemory::Allocate(size_t bytes) {
  if (bytes > std::numeric_limits<size_t>::max() / 2) return nullptr;
  bytes = RoundUp(bytes == 0 ? 1 : bytes, kAlignment);
  if (kUseCalloc) {
    void* base = std::calloc(1, bytes + kAlignment);  // guarantees only 16-byte alignment
    if (base == nullptr) return nullptr;
    regions_.push_back({base, bytes + kAlignment});
    if (place_) place_(base, bytes + kAlignment);
    return reinterpret_cast<void*>(RoundUp(reinterpret_cast<uintptr_t>(base), kAlignment));
  }
  if (bytes >= kOwnRegion) return Map(bytes);
  if (bytes > left_) {
    next_ = Map(kSharedRegion);
    left_ = next_ != nullptr ? kSharedRegion : 0;
    if (next_ == nullptr) return nullptr;
  }
  void* piece = next_;
  next_ += bytes;
  left_ -= bytes;
  return piece;
}

std::byte* HostMemory::Map(size_t bytes) {
  const size_t mapped = RoundUp(bytes, kHugePage) + kHugePage;  // room to align the start to a huge page
  void* base = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  regions_.push_back({base, mapped});
  auto* first = reinterpret_cast<std::byte*>(RoundUp(reinterpret_cast<uintptr_t>(base), kHugePage));
  madvise(first, mapped - kHugePage, MADV_HUGEPAGE);  // best effort: on failure the memory is only slower
  if (place_) place_(first, mapped - kHugePage);
  return first;
}

}  // namespace foredraft
