// What only NCCL's ranks do, over NCCL on the host: non-blocking communicators, NCCL's errors, captures, and
// threads that ask for the status.

#include "engine/comm/nccl_communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "base/log.h"
#include "tests/cuda_on_host/nccl_faults.h"
#include "tests/engine/comm/communicator_contract.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Clock = std::chrono::steady_clock;

// NCCL carries every exchange.
std::vector<RankParts> ConnectOverNccl(int ranks, milliseconds step_timeout) {
  return ConnectRanks(ranks, step_timeout, {}, /*shared_memory=*/false);
}

// A row of each of two ranks, which lies in its place already.
AllGatherParams OneRowOfEach(RankParts& parts, int rank) {
  auto* const memory = *parts.device->AllocateArray<int32_t>(2);
  AllGatherParams params = {.rows = RankRows::Uniform(2, 1)};
  params.parts[0] = {memory, memory + rank, sizeof(int32_t)};
  return params;
}

class NcclOnHost : public ::testing::Test {
 protected:
  void SetUp() override { cuda_on_host::ResetNccl(); }
  void TearDown() override { cuda_on_host::ResetNccl(); }

  // Joins a group of two as one of its ranks.
  static absl::Status Join(int rank, RendezvousStore& store, seconds connect_timeout = seconds(1)) {
    UseDeviceOfRank(rank);
    auto device = CreateDevice("cuda", {});
    const absl::Status status = CreateCommunicator({.rank = rank,
                                                    .size = 2,
                                                    .backend = Backend::kCuda,
                                                    .step_timeout = kDeadline,
                                                    .connect_timeout = connect_timeout},
                                                   **device, &store)
                                    .status();
    UseDeviceOfRank(0);
    return status;
  }
};

// ---- joining ----

TEST_F(NcclOnHost, DoesNotConnectWithoutAllRanks) {
  InProcessRendezvous store;
  const auto start = Clock::now();
  const absl::Status status = Join(0, store);
  EXPECT_LT(Clock::now() - start, seconds(1) + kSlack);
  EXPECT_EQ(status, absl::UnavailableError("rank 0: joining the group: NCCL did not settle in time"));
}

TEST_F(NcclOnHost, NamesWhatKeepsARankFromJoining) {
  InProcessRendezvous empty;
  EXPECT_EQ(Join(1, empty).code(), absl::StatusCode::kDeadlineExceeded) << "rank 0 has set no id";
  InProcessRendezvous wrong;
  ASSERT_TRUE(wrong.Set("nccl/id", "short").ok());
  EXPECT_EQ(Join(1, wrong).message(), "rank 1: NCCL: the group's id has 5 bytes, not 128");
  InProcessRendezvous store;
  cuda_on_host::FailNccl("ncclGetUniqueId", 0, ncclSystemError);
  EXPECT_EQ(Join(0, store).message(), "rank 0: NCCL: unhandled system error");
  cuda_on_host::FailNccl("ncclCommInitRankConfig", 0, ncclInternalError);
  EXPECT_EQ(Join(0, store).message(), "rank 0: NCCL: joining 2 ranks: internal error");
}

TEST_F(NcclOnHost, TwoRanksOnOneDeviceAreRefusedByNccl) {
  InProcessRendezvous store;
  std::vector<absl::Status> statuses(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto device = CreateDevice("cuda", {});  // device 0, on both
      statuses[rank] = CreateCommunicator({.rank = rank,
                                           .size = 2,
                                           .backend = Backend::kCuda,
                                           .step_timeout = kDeadline,
                                           .connect_timeout = kPatience},
                                          **device, &store)
                           .status();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) {
    EXPECT_THAT(status.message(), HasSubstr("invalid usage: Duplicate GPU detected : rank 0 and rank 1"));
  }
}

// What operators set for other programs, and what would end the deadlines or the order of launches here.
TEST_F(NcclOnHost, OverridesVariablesThatItCannotLiveWith) {
  std::string log;
  InstallLogSink(
      [&log](LogLevel, std::string_view line, const LogFields&) { log.append(line).append("\n"); });
  setenv("NCCL_COMM_BLOCKING", "1", 1);
  unsetenv("NCCL_GRAPH_MIXING_SUPPORT");
  InProcessRendezvous store;
  EXPECT_FALSE(Join(0, store).ok());  // alone
  EXPECT_STREQ(std::getenv("NCCL_COMM_BLOCKING"), "0");
  EXPECT_STREQ(std::getenv("NCCL_GRAPH_MIXING_SUPPORT"), "1");
  EXPECT_EQ(log, "NCCL_COMM_BLOCKING is 0, not 1: calls that block have no deadline\n");
  InstallLogSink(nullptr);
}

TEST_F(NcclOnHost, AsksForSixteenChannels) {
  ConnectOverNccl(2, kPatience);
  EXPECT_EQ(cuda_on_host::NcclMaxCtas(), 16);
}

// ---- calls that settle later ----

TEST_F(NcclOnHost, WaitsUntilEveryGroupHasSettled) {
  for (const int polls : {0, 1, 2000}) {
    cuda_on_host::SetNcclPolls(polls);
    std::vector<RankParts> group = ConnectOverNccl(2, kPatience);
    ForEachRank(2, [&](int rank) {
      for (const Call& call : AllCalls()) EXPECT_EQ(call.run(group[rank]), absl::OkStatus()) << call.name;
    });
  }
}

TEST_F(NcclOnHost, AGroupThatNeverSettlesIsAnErrorWithinTheDeadline) {
  std::vector<RankParts> group = ConnectOverNccl(2, kDeadline);
  cuda_on_host::SetNcclPolls(cuda_on_host::kNcclNeverSettles);
  const auto start = Clock::now();
  const absl::Status status = AllCalls()[0].run(group[0]);
  EXPECT_LT(Clock::now() - start, kDeadline + kSlack);
  EXPECT_EQ(status.message(), "rank 0: all_gather: rank 0: all_gather: NCCL did not settle in time");
  ExpectOver(status, group[0]);
}

TEST_F(NcclOnHost, AbortEndsTheWaitForAGroupThatNeverSettles) {
  std::vector<RankParts> group = ConnectOverNccl(2, kPatience);
  cuda_on_host::SetNcclPolls(cuda_on_host::kNcclNeverSettles);
  std::thread waiting([&] {
    UseDeviceOfRank(0);
    EXPECT_EQ(group[0].comm->Barrier().message(), "the leader aborted");
  });
  std::this_thread::sleep_for(milliseconds(20));
  group[0].comm->Abort(absl::CancelledError("the leader aborted"));
  waiting.join();
  ExpectOver(group[0].comm->status(), group[0]);
}

// ---- NCCL's errors ----

TEST_F(NcclOnHost, AnErrorOfAnyCallEndsTheGroup) {
  const struct {
    const char* function;
    int call;  // of AllCalls
    const char* says;
  } cases[] = {
      {"ncclGroupStart", 0, "rank 0: all_gather: unhandled system error"},
      {"ncclGroupEnd", 0, "rank 0: all_gather: unhandled system error"},
      {"ncclAllGather", 0, "rank 0: all_gather: unhandled system error"},
      {"ncclAlltoAll", 1, "rank 0: all_to_all: unhandled system error"},
      {"ncclAllReduce", 2, "rank 0: all_reduce: unhandled system error"},
      {"ncclBroadcast", 3, "rank 0: broadcast: unhandled system error"},
      {"ncclAllReduce", 4, "rank 0: all_reduce: unhandled system error"},
      {"ncclCommGetAsyncError", 0, "rank 0: all_gather: NCCL: unhandled system error"},
      {cuda_on_host::kNcclLaunch, 0, "rank 0: all_gather: NCCL: unhandled system error: the launch failed"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.function);
    std::vector<RankParts> group = ConnectOverNccl(2, kPatience);
    cuda_on_host::FailNccl(c.function, 0, ncclSystemError);
    const auto start = Clock::now();
    const absl::Status status = AllCalls()[c.call].run(group[0]);
    EXPECT_LT(Clock::now() - start, kSlack);
    EXPECT_THAT(std::string(status.message()), AllOf(StartsWith("rank 0: "), HasSubstr(c.says)));
    ExpectOver(status, group[0]);
  }
}

// A peer's process ends while this rank waits for it.
// Rank 1 does not take part, so nothing but the error ends the wait.
TEST_F(NcclOnHost, AnErrorThatNcclReportsLaterEndsTheWait) {
  std::vector<RankParts> group = ConnectOverNccl(2, kPatience);
  UseDeviceOfRank(0);
  RankParts& parts = group[0];
  auto* const memory = *parts.device->AllocateArray<int32_t>(2);
  AllGatherParams params = {.rows = RankRows::Uniform(2, 1)};
  params.parts[0] = {memory, memory, sizeof(int32_t)};
  const auto stream = parts.device->CreateStream();
  parts.comm->AllGather(*stream, params);
  std::thread later([] {
    std::this_thread::sleep_for(milliseconds(20));
    cuda_on_host::SetNcclAsyncError(0, ncclRemoteError);
  });
  const absl::Status status = parts.comm->Await(*stream);
  later.join();
  EXPECT_EQ(status.message(),
            "rank 0: NCCL: remote process exited or there was a network error: a peer closed its connection");
  ExpectOver(status, parts);
}

// Any thread may ask, and sees the error although no collective runs.
TEST_F(NcclOnHost, StatusReportsAnErrorThatNoCollectiveMet) {
  std::vector<RankParts> group = ConnectOverNccl(2, kPatience);
  EXPECT_EQ(group[0].comm->status(), absl::OkStatus());
  cuda_on_host::SetNcclAsyncError(0, ncclRemoteError);
  EXPECT_THAT(group[0].comm->status().message(), HasSubstr("network error"));
  ExpectOver(group[0].comm->status(), group[0]);
}

TEST_F(NcclOnHost, AGraphIsReplayedIntoAFailureAndEnds) {
  std::vector<RankParts> group = ConnectOverNccl(2, kDeadline);
  ForEachRank(2, [&](int rank) {
    RankParts& parts = group[rank];
    const AllGatherParams params = OneRowOfEach(parts, rank);
    const auto stream = parts.device->CreateStream();
    const auto graph = parts.device->Capture(*stream, [&] { parts.comm->AllGather(*stream, params); });
    graph->Replay(*stream);
    EXPECT_EQ(parts.comm->Await(*stream), absl::OkStatus());
    if (rank == 1) return;
    graph->Replay(*stream);  // rank 1 does not
    EXPECT_EQ(parts.comm->Await(*stream).message(), "rank 0: step: did not end within 200 ms");
    graph->Replay(*stream);
    EXPECT_EQ(parts.comm->Await(*stream).message(), "rank 0: step: did not end within 200 ms");
  });
}

// Steps of equal exchanges are not enough: NCCL wants the same graph of all ranks.
TEST_F(NcclOnHost, RanksThatReplayDifferentGraphsAreFound) {
  const auto replay = [](int other) {
    std::vector<RankParts> group = ConnectOverNccl(2, kDeadline);
    ForEachRank(2, [&](int rank) {
      RankParts& parts = group[rank];
      const AllGatherParams params = OneRowOfEach(parts, rank);
      const auto stream = parts.device->CreateStream();
      std::vector<std::unique_ptr<Graph>> graphs;
      for (int i = 0; i < 2; ++i) {
        graphs.push_back(parts.device->Capture(*stream, [&] { parts.comm->AllGather(*stream, params); }));
      }
      graphs[1]->Replay(*stream);
      EXPECT_EQ(parts.comm->Await(*stream), absl::OkStatus());
      graphs[rank == 0 ? 1 : other]->Replay(*stream);
      EXPECT_EQ(parts.comm->Await(*stream), absl::OkStatus());
    });
  };
  replay(1);
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(replay(0), "rank 0 has all_gather of 4 in graph 2; rank 1 has all_gather of 4 in graph 1");
}

// ---- threads ----

// status() is called by the thread that waits for a step while another submits the next one. NCCL frees a
// settled enqueue in the call that status() makes.
TEST_F(NcclOnHost, StatusMayBeAskedWhileAnotherThreadSubmits) {
  std::vector<RankParts> group = ConnectOverNccl(2, kPatience);
  std::atomic<bool> done{false};
  std::vector<std::thread> askers;
  for (int rank = 0; rank < 2; ++rank) {
    askers.emplace_back([&, rank] {
      while (!done) {
        EXPECT_EQ(group[rank].comm->status(), absl::OkStatus());
        std::this_thread::yield();
      }
    });
  }
  ForEachRank(2, [&](int rank) {
    for (int i = 0; i < 100; ++i) ASSERT_EQ(group[rank].comm->Barrier(), absl::OkStatus());
  });
  done = true;
  for (std::thread& asker : askers) asker.join();
}

}  // namespace
}  // namespace foredraft
