// Where the memory of a device on several nodes lies, as the device asks for it and, where this machine has
// nodes, as the kernel tells; and that neither changes a bit.

#include <linux/mempolicy.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/cpu/device/cpu_device.h"
#include "kernels/cpu/gemm/packed_weight.h"
#include "tests/ops/weights.h"

namespace foredraft {
namespace {

constexpr int kInTurns = -1;  // pages of all nodes

struct PlacedRegion {
  const unsigned char* first;
  size_t bytes;
  int node;
};

class RecordingPlacer : public PagePlacer {
 public:
  explicit RecordingPlacer(std::vector<PlacedRegion>* regions) : regions_(regions) {}
  void Bind(void* first, size_t bytes, int os_node) override { Record(first, bytes, os_node); }
  void Interleave(void* first, size_t bytes, std::span<const int> os_nodes) override {
    EXPECT_GT(os_nodes.size(), 1u);
    Record(first, bytes, kInTurns);
  }

 private:
  void Record(void* first, size_t bytes, int node) {
    regions_->push_back({static_cast<const unsigned char*>(first), bytes, node});
  }

  std::vector<PlacedRegion>* const regions_;
};

// A device on a made-up machine, and what it asked for.
struct PlacedDevice {
  PlacedDevice(const std::string& machine, int threads) {
    placement = PlaceThreads(*SyntheticTopology(machine), threads, /*pin=*/false);
    placement.cpus.clear();
    device =
        *CpuDevice::CreateOnNodes(placement, std::make_unique<RecordingPlacer>(&regions), DeviceOptions{});
  }

  // The node that a byte was asked for; 99 if none was.
  int NodeOf(const void* address) const {
    const auto* byte = static_cast<const unsigned char*>(address);
    for (const PlacedRegion& region : regions) {
      if (byte >= region.first && byte < region.first + region.bytes) return region.node;
    }
    return 99;
  }

  ThreadPlacement placement;
  std::vector<PlacedRegion> regions;
  std::unique_ptr<Device> device;
};

struct Kind {
  const char* name;
  DType dtype;
  int block_n, block_k;
};
constexpr Kind kKinds[] = {{"bf16", DType::kBF16, 0, 0},
                           {"fp8", DType::kF8E4M3, 128, 128},
                           {"int4", DType::kInt4, 1, 32},
                           {"nvfp4", DType::kF4E2M1, 1, 16}};

struct Machine {
  const char* topology;
  int threads;
};
constexpr Machine kMachines[] = {{"numa:2 core:2 pu:1", 4},
                                 {"numa:4 core:2 pu:1", 8},
                                 {"numa:2 core:32 pu:1", 64},
                                 {"numa:3 core:1 pu:1", 3}};

TEST(MemoryPlacement, EveryPanelLiesOnTheNodeWhoseThreadsReadIt) {
  for (const Machine& machine : kMachines) {
    for (const Kind& kind : kKinds) {
      Noise noise(7);
      PlacedDevice placed(machine.topology, machine.threads);
      const int nodes = static_cast<int>(placed.placement.nodes.size());
      const ThreadPool pool(placed.placement);
      // 13 panels, of which the last is not full; several weights share a region.
      const TestWeight weight =
          MakeTestWeight(noise, {300, 101}, 256, kind.dtype, kind.block_n, kind.block_k);
      for (int i = 0; i < 3; ++i) {
        const auto packed = placed.device->PackWeight(weight.parts);
        ASSERT_TRUE(packed.ok()) << packed.status();
        const PackedHeader& header = HeaderOf(*packed);
        ASSERT_EQ(header.panel_count, 13);
        for (int node = 0; node < nodes; ++node) {
          for (int64_t s = pool.FirstPanel(13, node); s < pool.FirstPanel(13, node + 1); ++s) {
            const Panel panel = PanelOf(*packed, s);
            const std::string where =
                std::string(machine.topology) + ", " + kind.name + ", panel " + std::to_string(s);
            EXPECT_EQ(placed.NodeOf(panel.data), node) << where;
            EXPECT_EQ(placed.NodeOf(panel.data + header.panel_bytes - 1), node) << where;
            if (panel.scales == nullptr) continue;
            EXPECT_EQ(placed.NodeOf(panel.scales), node) << where;
            EXPECT_EQ(placed.NodeOf(panel.scales + header.k_blocks * kPanelWidth - 1), node) << where;
          }
        }
      }
    }
  }
}

TEST(MemoryPlacement, WhatAllNodesUseLiesOnThemInTurns) {
  PlacedDevice placed("numa:2 core:2 pu:1", 4);
  for (const size_t bytes : {size_t{100}, size_t{20} << 20}) {
    const auto memory = placed.device->Allocate(bytes);
    ASSERT_TRUE(memory.ok());
    EXPECT_EQ(placed.NodeOf(*memory), kInTurns);
  }
  EXPECT_EQ(placed.NodeOf(*placed.device->AllocatePinned(64)), kInTurns);
}

// The outputs of a GEMM on a device with these options.
std::vector<float> Product(const DeviceOptions& options, const TestWeight& weight,
                           const std::vector<bf16>& x) {
  const int k = weight.parts[0].k;
  const int rows = static_cast<int>(x.size()) / k;
  OpRig rig(options, RunMode::kEager);
  float* const out = rig.Poisoned<float>(rows * weight.n);
  rig.ops().gemm(rig.stream(), {.out = Dense(out, rows, weight.n),
                                .x = Dense<const bf16>(rig.Put(x), rows, k),
                                .weight = rig.Pack(weight.parts)});
  return rig.Get(out, rows * weight.n);
}

TEST(MemoryPlacement, NodesAndThreadsChangeNoBit) {
  constexpr int kK = 1024;  // long enough that the GEMM is divided
  for (const Kind& kind : kKinds) {
    Noise noise(11);
    const TestWeight weight = MakeTestWeight(noise, {1000, 101}, kK, kind.dtype, kind.block_n, kind.block_k);
    for (const int rows : {1, 5, 70}) {
      std::vector<bf16> x(static_cast<size_t>(rows) * kK);
      for (bf16& value : x) value = ToBf16(noise.Normal());
      for (const std::string& isa : SupportedIsas()) {
        if (isa == "portable" && rows > 1) continue;
        const std::vector<float> alone = Product({.threads = 1, .isa = isa}, weight, x);
        EXPECT_EQ(Product({.threads = 64, .isa = isa}, weight, x), alone) << isa << " " << kind.name;
        for (const Machine& machine : kMachines) {
          const DeviceOptions options{
              .threads = machine.threads, .numa = true, .topology = machine.topology, .isa = isa};
          EXPECT_EQ(Product(options, weight, x), alone)
              << isa << " " << kind.name << ", " << rows << " rows on " << machine.topology;
        }
      }
    }
  }
}

// Asks the kernel, page by page.
TEST(MemoryPlacement, TheKernelPutsPagesWhereTheyAreBound) {
  const CpuTopology here = ReadTopology();
  const int node = here.nodes.back().os_index;
  KernelPagePlacer placer;
  HostMemory memory([&](void* first, size_t bytes) { placer.Bind(first, bytes, node); });
  constexpr size_t kBytes = size_t{4} << 20;
  const auto page = static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
  auto* first = static_cast<unsigned char*>(memory.Allocate(kBytes));
  first += (page - reinterpret_cast<uintptr_t>(first) % page) % page;  // under AddressSanitizer
  std::vector<void*> pages;
  for (size_t offset = 0; offset + 2 * page <= kBytes; offset += page) {
    first[offset] = 1;
    pages.push_back(first + offset);
  }
  std::vector<int> nodes(pages.size(), -1);
  if (syscall(SYS_move_pages, 0, pages.size(), pages.data(), nullptr, nodes.data(), 0) != 0) {
    GTEST_SKIP() << "move_pages: " << std::strerror(errno);
  }
  EXPECT_EQ(std::count(nodes.begin(), nodes.end(), node), static_cast<int64_t>(nodes.size()));
  int mode = -1;
  unsigned long mask[16] = {};
  if (syscall(SYS_get_mempolicy, &mode, mask, 1024, first, MPOL_F_ADDR) != 0) {
    GTEST_SKIP() << "get_mempolicy: " << std::strerror(errno);
  }
#ifndef __SANITIZE_ADDRESS__
  EXPECT_EQ(mode, MPOL_PREFERRED);
  EXPECT_EQ(mask[node / 64], 1UL << (node % 64));
#endif
}

}  // namespace
}  // namespace foredraft
