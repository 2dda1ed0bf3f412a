// What only ranks on CPUs do, through shared memory and over Gloo's connections: they name the rank they
// waited for, and notice a peer that has closed.

#include "engine/comm/cpu_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <future>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "tests/engine/comm/communicator_contract.h"

namespace foredraft {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

struct Mesh {
  const char* name;
  bool shared_memory;
};
constexpr Mesh kMeshes[] = {{"SharedMemory", true}, {"Gloo", false}};

class CpuRanks : public ::testing::TestWithParam<std::tuple<int, Mesh>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  std::vector<RankParts> Connect(std::chrono::milliseconds step_timeout) const {
    return ConnectRanks(ranks(), step_timeout, {}, std::get<1>(GetParam()).shared_memory);
  }
};
INSTANTIATE_TEST_SUITE_P(Over, CpuRanks,
                         ::testing::Combine(::testing::Values(2, 4, 8), ::testing::ValuesIn(kMeshes)),
                         [](const auto& info) {
                           return std::get<1>(info.param).name + std::to_string(std::get<0>(info.param));
                         });

TEST(CpuCommunicator, NamesTheOperationThatFailedAndTheRankItWaitedFor) {
  for (const Mesh& mesh : kMeshes) {
    for (const Call& call : AllCalls()) {
      std::vector<RankParts> group = ConnectRanks(2, kDeadline, {}, mesh.shared_memory);
      EXPECT_EQ(call.run(group[0]).message(),
                "rank 0: " + std::string(call.name) + ": nothing from rank 1 within 200 ms");
    }
  }
}

TEST_P(CpuRanks, AClosedConnectionIsAnErrorLongBeforeTheDeadline) {
  std::vector<RankParts> group = Connect(kPatience);
  group[0].comm.reset();
  ForEachRank(ranks(), [&](int rank) {
    if (rank == 0) return;
    const auto start = Clock::now();
    const absl::Status status = AllCalls()[0].run(group[rank]);
    EXPECT_LT(Clock::now() - start, kSlack);
    ExpectOver(status, group[rank]);
  });
}

TEST_P(CpuRanks, AbortEndsTheWaitOfEveryOtherRank) {
  for (const Call& call : AllCalls()) {
    SCOPED_TRACE(call.name);
    std::vector<RankParts> group = Connect(kPatience);
    std::vector<std::future<absl::Status>> waiting;
    for (int rank = 1; rank < ranks(); ++rank) {
      waiting.push_back(std::async(std::launch::async, [&, rank] { return call.run(group[rank]); }));
    }
    const auto start = Clock::now();
    group[0].comm->Abort(absl::CancelledError("the leader aborted"));
    for (int rank = 1; rank < ranks(); ++rank) ExpectOver(waiting[rank - 1].get(), group[rank]);
    EXPECT_LT(Clock::now() - start, kSlack);
    EXPECT_EQ(group[0].comm->status().message(), "the leader aborted");
    ExpectOver(group[0].comm->status(), group[0]);
  }
}

// Linux delays an acknowledgement by 40 ms where it may.
TEST(CpuCommunicator, LargeBlocksDoNotWaitForAcknowledgements) {
  std::vector<RankParts> group = ConnectRanks(2, kPatience);
  std::vector<Clock::duration> times;
  ForEachRank(2, [&](int rank) {
    Communicator& comm = *group[rank].comm;
    std::vector<std::byte> bytes(1 << 20);
    EXPECT_TRUE(comm.Barrier().ok());  // a short message before
    for (int i = 0; i < 51; ++i) {
      const auto start = Clock::now();
      EXPECT_TRUE(comm.Broadcast(bytes, i % 2).ok());
      if (rank == 0) times.push_back(Clock::now() - start);
    }
  });
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  EXPECT_LT(times[times.size() / 2], std::chrono::milliseconds(30));
}

TEST(CpuCommunicator, DoesNotConnectWithoutAllRanks) {
  InProcessRendezvous store;
  auto device = CreateDevice("cpu", {.threads = 1});
  const auto start = Clock::now();
  const auto comm = CreateCommunicator(
      {.rank = 0, .size = 2, .step_timeout = kDeadline, .connect_timeout = seconds(1)}, **device, &store);
  EXPECT_LT(Clock::now() - start, seconds(1) + kSlack);
  EXPECT_EQ(comm.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(comm.status().message(), HasSubstr("rank 0: the 2 ranks did not connect within 1 s"));
}

TEST(CpuCommunicator, NamesAnInterfaceThatThisHostDoesNotHave) {
  InProcessRendezvous store;
  auto device = CreateDevice("cpu", {.threads = 1});
  const auto comm = CreateCommunicator(
      {.rank = 0, .size = 2, .interface = "eth99", .step_timeout = kDeadline}, **device, &store);
  EXPECT_EQ(comm.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(comm.status().message(), HasSubstr("parallel.interface: \"eth99\""));
}

}  // namespace
}  // namespace foredraft
