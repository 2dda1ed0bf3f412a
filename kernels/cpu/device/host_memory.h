#pragma once

// An arena of zeroed memory, freed all at once. It uses huge pages where the kernel allows them: a decode
// step reads all weights, and with 4 KB pages it would miss the TLB at every page.
//
// Small allocations (a weight, a table) share regions; a large one gets its own. Huge pages that are never
// written take no physical memory. Under AddressSanitizer each allocation comes from calloc, with red zones.
//
// Not thread-safe: the owner locks.

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace foredraft {

class HostMemory {
 public:
  // Called with each region before it is touched, for example to bind it to a NUMA node.
  using PlaceFn = std::function<void(void* first, size_t bytes)>;

  explicit HostMemory(PlaceFn place = nullptr) : place_(std::move(place)) {}
  ~HostMemory();
  HostMemory(HostMemory&& other) noexcept;
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Aligned to 64 bytes; null if out of memory. `bytes` may be 0.
  void* Allocate(size_t bytes);

 private:
  struct Region {
    void* base;  // as mapped
    size_t bytes;
  };

  // Maps `bytes`, aligned to a huge page; null if out of memory.
  std::byte* Map(size_t bytes);

  PlaceFn place_;
  std::vector<Region> regions_;
  std::byte* next_ = nullptr;  // free memory of the shared region
  size_t left_ = 0;
};

}  // namespace foredraft
