#pragma once

// The NUMA nodes of a machine, and which of their cores the threads of a pool take. hwloc reads the machine;
// its synthetic descriptions ("numa:2 core:32 pu:2") stand for machines that are not there.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace foredraft {

struct NumaNode {
  int os_index = 0;       // the kernel's number
  int cores = 0;          // that have a usable logical CPU
  std::vector<int> cpus;  // usable logical CPUs: one of each core, then the second ones
  int64_t memory_bytes = 0;

  bool operator==(const NumaNode&) const = default;
};

// Nodes that have usable CPUs. Memory without CPUs of its own, as of CXL, is left out.
struct CpuTopology {
  std::vector<NumaNode> nodes;

  int core_count() const;
  int cpu_count() const;
};

// This machine, as far as the calling thread may run on it. One node if hwloc reports none.
CpuTopology ReadTopology();

// INVALID_ARGUMENT if hwloc does not understand the description. `usable`: as of a cpuset; empty: all.
absl::StatusOr<CpuTopology> SyntheticTopology(const std::string& description,
                                              std::span<const int> usable = {});

// "2 nodes x 32 cores x 2 threads, 2 x 384 GiB"; "2 nodes, 32 + 16 cores, ..." where nodes differ.
std::string TopologyText(const CpuTopology& topology);

// The threads of a pool: consecutive ones are on the same node.
struct ThreadPlacement {
  struct Node {
    int os_index = 0;
    int threads = 0;  // at least 1
  };
  std::vector<Node> nodes;
  std::vector<std::vector<int>> cpus;  // [threads]: where a thread may run; empty: wherever the pool may

  int thread_count() const;
};

// Divides the threads among the nodes by their cores. A thread is pinned to one CPU if `pin` and there are
// enough; else it stays on its node.
ThreadPlacement PlaceThreads(const CpuTopology& topology, int threads, bool pin);

// All threads on one node, none pinned.
ThreadPlacement PlaceOnOneNode(int threads);

}  // namespace foredraft
