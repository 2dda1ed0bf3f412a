// The contract of engine/comm/communicator.h, for a group of one rank and for ranks of TestBackend(): Gloo
// over loopback, or NCCL on the host (tests/cuda_on_host).

#include "engine/comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <tuple>

#include "tests/engine/comm/communicator_contract.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

// Ranks, and whether they may share memory.
class CommunicatorOver : public ::testing::TestWithParam<std::tuple<int, bool>> {
 protected:
  int ranks() const { return std::get<0>(GetParam()); }
  std::vector<RankParts> Connect(std::chrono::milliseconds step_timeout) const {
    return ConnectRanks(ranks(), step_timeout, {}, std::get<1>(GetParam()));
  }
};

INSTANTIATE_TEST_SUITE_P(Ranks, CommunicatorOver,
                         ::testing::Combine(::testing::Values(1, 2, 4, 8), ::testing::Bool()));

TEST_P(CommunicatorOver, AllGatherGivesEveryRankTheRowsOfAll) {
  std::vector<RankParts> group = Connect(kPatience);
  ExpectAllGather(group);
}

TEST_P(CommunicatorOver, AllToAllBringsEveryRowBackOncePerRank) {
  std::vector<RankParts> group = Connect(kPatience);
  ExpectAllToAll(group);
}

TEST_P(CommunicatorOver, SetsExchangeAmongThemselves) {
  if (ranks() == 1) return;  // a set is all there is
  std::vector<RankParts> group = Connect(kPatience);
  ExpectSets(group);
}

TEST_P(CommunicatorOver, AllReduceAndBroadcastAndBarrierWorkOnHostMemory) {
  std::vector<RankParts> group = Connect(kPatience);
  ExpectHostCollectives(group);
}

class RanksOver : public CommunicatorOver {};
INSTANTIATE_TEST_SUITE_P(Ranks, RanksOver, ::testing::Combine(::testing::Values(2, 4, 8), ::testing::Bool()));

TEST_P(RanksOver, ARankThatNeverArrivesIsAnErrorForAllWithinTheDeadline) {
  for (const Call& call : AllCalls()) {
    SCOPED_TRACE(call.name);
    std::vector<RankParts> group = Connect(kDeadline);
    const int missing = ranks() - 1;
    ForEachRank(ranks(), [&](int rank) {
      if (rank == missing) return;
      const auto start = Clock::now();
      const absl::Status status = call.run(group[rank]);
      EXPECT_LT(Clock::now() - start, kDeadline + kSlack);
      EXPECT_THAT(status.message(), HasSubstr("rank " + std::to_string(rank) + ": "));
      ExpectOver(status, group[rank]);
    });
  }
}

// Abort comes from a thread other than the waiting one, before or after the wait begins.
TEST(Ranks, AbortEndsTheOwnWait) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    std::vector<RankParts> group = ConnectRanks(2, kPatience);
    std::future<absl::Status> waiting =
        std::async(std::launch::async, [&] { return group[1].comm->Barrier(); });
    const auto start = Clock::now();
    group[1].comm->Abort(absl::CancelledError("the leader aborted"));
    const absl::Status status = waiting.get();
    EXPECT_LT(Clock::now() - start, kSlack);
    EXPECT_EQ(status.message(), "the leader aborted");
    ExpectOver(status, group[1]);
  }
}

TEST(Solo, IsOverAfterAbort) {
  std::vector<RankParts> group = ConnectRanks(1, kPatience);
  EXPECT_TRUE(group[0].comm->status().ok());
  group[0].comm->Abort(absl::CancelledError("first reason"));
  group[0].comm->Abort(absl::CancelledError("second reason"));
  EXPECT_EQ(group[0].comm->status().message(), "first reason");
  ExpectOver(group[0].comm->status(), group[0]);
}

}  // namespace
}  // namespace foredraft
