#include "kernels/cpu/device/page_placer.h"

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <climits>
#include <cstdint>
#include <cstring>
#include <vector>

#include "base/log.h"

namespace foredraft {
namespace {

constexpr size_t kWordBits = sizeof(unsigned long) * CHAR_BIT;

void Place(void* first, size_t bytes, int mode, std::span<const int> os_nodes) {
  // Only whole pages are placed: mbind refuses parts, and a shared page belongs to its neighbour, too.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGE_SIZE));
  const uintptr_t begin = (reinterpret_cast<uintptr_t>(first) + page - 1) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(first) + bytes) / page * page;
  if (begin >= end) return;
  std::vector<unsigned long> mask;
  for (const int node : os_nodes) {
    if (mask.size() <= node / kWordBits) mask.resize(node / kWordBits + 1);
    mask[node / kWordBits] |= 1UL << (node % kWordBits);
  }
  // The kernel reads one bit less than it is told.
  if (syscall(SYS_mbind, begin, end - begin, mode, mask.data(), mask.size() * kWordBits + 1, 0) == 0) return;
  static std::atomic<bool> logged{false};
  if (logged.exchange(true)) return;
  Log(LogLevel::kWarning,
      "cpu.numa: mbind: %s; memory lies where it is touched first (in a container, allow CAP_SYS_NICE)",
      std::strerror(errno));
}

}  // namespace

void KernelPagePlacer::Bind(void* first, size_t bytes, int os_node) {
  Place(first, bytes, MPOL_PREFERRED, {&os_node, 1});
}

void KernelPagePlacer::Interleave(void* first, size_t bytes, std::span<const int> os_nodes) {
  Place(first, bytes, MPOL_INTERLEAVE, os_nodes);
}

}  // namespace foredraft
