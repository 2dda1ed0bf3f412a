#pragma once

// Tells the kernel on which NUMA node the pages of a region belong, before they are touched. Best effort:
// where the kernel refuses (a container without CAP_SYS_NICE), pages lie on the node of the thread that
// touches them first. Thread-safe.

#include <cstddef>
#include <span>

namespace foredraft {

class PagePlacer {
 public:
  virtual ~PagePlacer() = default;
  // Pages come from this node, from others where it is full.
  virtual void Bind(void* first, size_t bytes, int os_node) = 0;
  // Pages come from the nodes in turn.
  virtual void Interleave(void* first, size_t bytes, std::span<const int> os_nodes) = 0;
};

// Uses mbind; logs the first refusal.
class KernelPagePlacer : public PagePlacer {
 public:
  void Bind(void* first, size_t bytes, int os_node) override;
  void Interleave(void* first, size_t bytes, std::span<const int> os_nodes) override;
};

}  // namespace foredraft
