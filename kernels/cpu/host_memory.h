#ifndef FOREDRAFT_KERNELS_CPU_HOST_MEMORY_H_
#define FOREDRAFT_KERNELS_CPU_HOST_MEMORY_H_

// Zeroed memory that is given back all at once, on huge pages where the kernel allows them: a decode step
// walks over all weights, and with pages of 4 KB the walk misses the TLB at each of them.
//
// Small pieces (a weight, a table) share regions; what is large has one of its own. Memory nobody writes to
// costs nothing, to the huge page. Under AddressSanitizer each piece comes from calloc, with its red zones.
//
// Thread: the owner's lock.

#include <cstddef>
#include <vector>

namespace foredraft {

class HostMemory {
 public:
  HostMemory() = default;
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  // Aligned to 64 bytes; null where there is no memory. `bytes` may be 0.
  void* Allocate(size_t bytes);

 private:
  struct Region {
    void* base;  // as mapped
    size_t bytes;
  };

  // `bytes` of fresh memory from a huge page's border on; null where there is none.
  std::byte* Map(size_t bytes);

  std::vector<Region> regions_;
  std::byte* next_ = nullptr;  // free memory of the shared region
  size_t left_ = 0;
};

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_HOST_MEMORY_H_
