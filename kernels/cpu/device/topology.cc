#include "kernels/cpu/device/topology.h"

#include <hwloc.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace foredraft {
namespace {

struct DestroyTopology {
  void operator()(hwloc_topology_t topology) const { hwloc_topology_destroy(topology); }
};
using Topology = std::unique_ptr<hwloc_topology, DestroyTopology>;

// Null on failure. `synthetic`: null for this machine.
Topology Load(const char* synthetic) {
  hwloc_topology_t raw = nullptr;
  if (hwloc_topology_init(&raw) != 0) return nullptr;
  Topology topology(raw);
  if (synthetic != nullptr && hwloc_topology_set_synthetic(raw, synthetic) != 0) return nullptr;
  if (hwloc_topology_load(raw) != 0) return nullptr;
  return topology;
}

// Moves the CPUs of `set` from `usable` to `node`: the first of each core, then the second.
void TakeCpus(hwloc_topology_t topology, hwloc_const_cpuset_t set, std::vector<int>& usable, NumaNode& node) {
  std::vector<std::vector<int>> ranks;  // [thread of a core] -> CPUs
  hwloc_obj_t core = nullptr;
  while ((core = hwloc_get_next_obj_inside_cpuset_by_type(topology, set, HWLOC_OBJ_CORE, core)) != nullptr) {
    size_t rank = 0;
    for (int cpu = hwloc_bitmap_first(core->cpuset); cpu >= 0; cpu = hwloc_bitmap_next(core->cpuset, cpu)) {
      const auto found = std::find(usable.begin(), usable.end(), cpu);
      if (found == usable.end()) continue;
      usable.erase(found);
      if (rank == ranks.size()) ranks.emplace_back();
      ranks[rank++].push_back(cpu);
    }
    if (rank > 0) ++node.cores;
  }
  for (const std::vector<int>& cpus : ranks) node.cpus.insert(node.cpus.end(), cpus.begin(), cpus.end());
}

CpuTopology NodesOf(hwloc_topology_t topology, std::vector<int> usable) {
  CpuTopology result;
  hwloc_obj_t object = nullptr;
  while ((object = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_NUMANODE, object)) != nullptr) {
    NumaNode node{.os_index = static_cast<int>(object->os_index),
                  .memory_bytes = static_cast<int64_t>(object->attr->numanode.local_memory)};
    TakeCpus(topology, object->cpuset, usable, node);
    if (!node.cpus.empty()) result.nodes.push_back(std::move(node));
  }
  return result;
}

std::vector<int> AllCpus(hwloc_topology_t topology) {
  std::vector<int> cpus;
  const hwloc_const_cpuset_t set = hwloc_topology_get_topology_cpuset(topology);
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) cpus.push_back(cpu);
  return cpus;
}

std::vector<int> CpusOfCallingThread() {
  std::vector<int> cpus;
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

// "32", or "32 + 16" where nodes differ.
template <class Value>
std::string EachOf(const CpuTopology& topology, const Value& value) {
  const auto same = [&](const NumaNode& node) { return value(node) == value(topology.nodes[0]); };
  if (std::all_of(topology.nodes.begin(), topology.nodes.end(), same)) {
    return absl::StrCat(value(topology.nodes[0]));
  }
  return absl::StrJoin(topology.nodes, " + ",
                       [&](std::string* out, const NumaNode& node) { absl::StrAppend(out, value(node)); });
}

}  // namespace

int CpuTopology::core_count() const {
  return std::accumulate(nodes.begin(), nodes.end(), 0,
                         [](int sum, const NumaNode& node) { return sum + node.cores; });
}

int CpuTopology::cpu_count() const {
  return std::accumulate(nodes.begin(), nodes.end(), 0, [](int sum, const NumaNode& node) {
    return sum + static_cast<int>(node.cpus.size());
  });
}

CpuTopology ReadTopology() {
  // Read once: reading takes milliseconds, and only the calling thread's CPUs may change.
  static const hwloc_topology_t machine = Load(nullptr).release();
  const std::vector<int> usable = CpusOfCallingThread();
  if (machine != nullptr) {
    CpuTopology topology = NodesOf(machine, usable);
    // Memory that a virtual machine got after its start is missing from the kernel's size of a node.
    if (topology.nodes.size() == 1 && hwloc_get_nbobjs_by_type(machine, HWLOC_OBJ_NUMANODE) == 1) {
      topology.nodes[0].memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGESIZE);
    }
    if (!topology.nodes.empty()) return topology;
  }
  const int cores = static_cast<int>(usable.size());
  return {.nodes = {{.os_index = 0, .cores = cores, .cpus = usable, .memory_bytes = 0}}};
}

absl::StatusOr<CpuTopology> SyntheticTopology(const std::string& description, std::span<const int> usable) {
  const Topology topology = Load(description.c_str());
  if (topology == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "topology: \"%s\", allowed a synthetic description of hwloc, as \"numa:2 core:4 pu:1\"",
        description));
  }
  std::vector<int> cpus(usable.begin(), usable.end());
  CpuTopology nodes = NodesOf(topology.get(), cpus.empty() ? AllCpus(topology.get()) : std::move(cpus));
  if (nodes.nodes.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("topology: \"%s\" has no usable CPU", description));
  }
  return nodes;
}

std::string TopologyText(const CpuTopology& topology) {
  const size_t count = topology.nodes.size();
  const std::string cores = EachOf(topology, [](const NumaNode& node) { return node.cores; });
  const bool even = cores.find('+') == std::string::npos;
  const int threads = topology.cpu_count() / std::max(1, topology.core_count());
  const std::string memory =
      EachOf(topology, [](const NumaNode& node) { return (node.memory_bytes + (1 << 29)) >> 30; });
  return absl::StrCat(
      count, count == 1 ? " node" : " nodes", even ? " x " : ", ", cores, cores == "1" ? " core" : " cores",
      threads > 1 ? absl::StrCat(" x ", threads, " threads") : "", ", ",
      count > 1 && memory.find('+') == std::string::npos ? absl::StrCat(count, " x ") : "", memory, " GiB");
}

int ThreadPlacement::thread_count() const {
  return std::accumulate(nodes.begin(), nodes.end(), 0,
                         [](int sum, const Node& node) { return sum + node.threads; });
}

ThreadPlacement PlaceThreads(const CpuTopology& topology, int threads, bool pin) {
  ThreadPlacement placement;
  // Two threads share a core only where there are more threads than cores.
  const bool by_core = threads <= topology.core_count();
  const int64_t total = by_core ? topology.core_count() : topology.cpu_count();
  const bool pinned = pin && threads <= topology.cpu_count();
  int64_t before = 0;
  for (const NumaNode& node : topology.nodes) {
    const int64_t after = before + (by_core ? node.cores : static_cast<int>(node.cpus.size()));
    const int count = static_cast<int>(threads * after / total - threads * before / total);
    before = after;
    if (count == 0) continue;
    placement.nodes.push_back({.os_index = node.os_index, .threads = count});
    for (int i = 0; i < count; ++i) {
      placement.cpus.push_back(pinned ? std::vector<int>{node.cpus[i]} : node.cpus);
    }
  }
  return placement;
}

ThreadPlacement PlaceOnOneNode(int threads) {
  return {.nodes = {{.os_index = 0, .threads = threads}}, .cpus = {}};
}

}  // namespace foredraft
