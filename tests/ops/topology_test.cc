// Nodes and cores of made-up machines, in hwloc's synthetic form, and where threads go on them.

#include "kernels/cpu/device/topology.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

CpuTopology MadeUp(const std::string& description, std::vector<int> usable = {}) {
  const auto topology = SyntheticTopology(description, usable);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return topology.ok() ? *topology : CpuTopology{};
}

// "os index: CPU CPU...", a node each.
std::vector<std::vector<int>> CpusOf(const CpuTopology& topology) {
  std::vector<std::vector<int>> cpus;
  for (const NumaNode& node : topology.nodes) cpus.push_back(node.cpus);
  return cpus;
}

std::vector<int> Range(int begin, int end) {
  std::vector<int> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

TEST(Topology, HasTheCoresOfEachNode) {
  EXPECT_THAT(CpusOf(MadeUp("numa:2 core:3 pu:1")), ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5)));
  const CpuTopology four = MadeUp("package:2 numa:2 core:16 pu:1");
  EXPECT_EQ(four.nodes.size(), 4u);
  EXPECT_EQ(four.core_count(), 64);
  EXPECT_EQ(four.nodes[2].cpus, Range(32, 48));
  EXPECT_EQ(four.nodes[2].os_index, 2);
}

TEST(Topology, ListsOneThreadOfEveryCoreFirst) {
  const CpuTopology smt = MadeUp("numa:2 core:2 pu:2");
  EXPECT_THAT(CpusOf(smt), ElementsAre(ElementsAre(0, 2, 1, 3), ElementsAre(4, 6, 5, 7)));
  EXPECT_EQ(smt.core_count(), 4);
  EXPECT_EQ(smt.cpu_count(), 8);
  // As Linux numbers them: second threads behind all first ones.
  EXPECT_THAT(CpusOf(MadeUp("numa:2 core:2 pu:2(indexes=0,4,1,5,2,6,3,7)")),
              ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7)));
}

TEST(Topology, HasWhatTheCpusetLeaves) {
  const CpuTopology some = MadeUp("numa:2 core:4 pu:1", {2, 3, 4});
  EXPECT_THAT(CpusOf(some), ElementsAre(ElementsAre(2, 3), ElementsAre(4)));
  const CpuTopology second = MadeUp("numa:2 core:4 pu:1", {5, 6});
  EXPECT_THAT(CpusOf(second), ElementsAre(ElementsAre(5, 6)));
  EXPECT_EQ(second.nodes[0].os_index, 1);
}

TEST(Topology, CountsACpuOnceWhereMemoryOfTwoKindsIsLocalToIt) {
  const CpuTopology topology = MadeUp("package:2 [numa(memory=64GB)] [numa(memory=16GB)] core:2 pu:1");
  EXPECT_THAT(CpusOf(topology), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
}

TEST(Topology, NamesADescriptionThatIsNone) {
  EXPECT_THAT(std::string(SyntheticTopology("two sockets").status().message()),
              HasSubstr("topology: \"two sockets\", allowed"));
  EXPECT_THAT(std::string(SyntheticTopology("numa:1 core:2 pu:1", std::vector<int>{7}).status().message()),
              HasSubstr("no usable CPU"));
}

TEST(Topology, ThisMachineHasTheCpusOfThisThread) {
  const CpuTopology here = ReadTopology();
  ASSERT_FALSE(here.nodes.empty());
  EXPECT_GT(here.core_count(), 0);
  EXPECT_GE(here.cpu_count(), here.core_count());
}

TEST(Topology, IsOneLineOfText) {
  EXPECT_EQ(TopologyText(MadeUp("numa:2(memory=384GiB) core:32 pu:2")),
            "2 nodes x 32 cores x 2 threads, 2 x 384 GiB");
  EXPECT_EQ(TopologyText(MadeUp("numa:1(memory=8GiB) core:1 pu:1")), "1 node x 1 core, 8 GiB");
  EXPECT_EQ(TopologyText(MadeUp("numa:2(memory=8GiB) core:4 pu:1", {0, 1, 2, 3, 4})),
            "2 nodes, 4 + 1 cores, 2 x 8 GiB");
}

TEST(PlaceThreads, GivesNodesConsecutiveThreadsByTheirCores) {
  struct Case {
    const char* machine;
    std::vector<int> usable;
    int threads;
    std::vector<int> counts;  // of the nodes that have threads
  };
  for (const Case& c :
       {Case{"numa:2 core:32 pu:2", {}, 64, {32, 32}}, Case{"numa:2 core:32 pu:2", {}, 128, {64, 64}},
        Case{"numa:2 core:32 pu:1", {}, 5, {2, 3}}, Case{"numa:4 core:2 pu:1", {}, 3, {1, 1, 1}},
        Case{"numa:2 core:4 pu:1", {0, 1, 2, 3, 4, 5}, 6, {4, 2}},
        Case{"numa:2 core:4 pu:1", {0, 1, 2, 3, 4, 5}, 3, {2, 1}},
        Case{"numa:2 core:2 pu:1", {}, 64, {32, 32}}, Case{"numa:1 core:2 pu:1", {}, 2, {2}}}) {
    const ThreadPlacement placement = PlaceThreads(MadeUp(c.machine, c.usable), c.threads, /*pin=*/true);
    std::vector<int> counts;
    for (const ThreadPlacement::Node& node : placement.nodes) counts.push_back(node.threads);
    EXPECT_EQ(counts, c.counts) << c.machine << ", " << c.threads << " threads";
    EXPECT_EQ(placement.thread_count(), c.threads);
  }
}

TEST(PlaceThreads, PinsEachToACoreOfItsNodeWhereTheyFit) {
  const CpuTopology machine = MadeUp("numa:2 core:2 pu:2");
  EXPECT_THAT(PlaceThreads(machine, 4, true).cpus,
              ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(4), ElementsAre(6)));
  // Otherwise a thread may run on the whole of its node.
  const auto node0 = ElementsAre(0, 2, 1, 3), node1 = ElementsAre(4, 6, 5, 7);
  EXPECT_THAT(PlaceThreads(machine, 2, false).cpus, ElementsAre(node0, node1));
  EXPECT_THAT(PlaceThreads(MadeUp("numa:2 core:1 pu:1"), 3, true).cpus,
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(1)));
}

}  // namespace
}  // namespace foredraft
