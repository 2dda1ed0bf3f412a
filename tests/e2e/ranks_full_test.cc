// Faults of a group beyond the table of lost_rank_test: the leader ends, two workers end at once, a crash
// repeats, a foreign worker dials in; and eight ranks under load. Full tier only.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <random>

#include "tests/e2e/rank_cluster.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

constexpr double kSlackS = 5;

struct LeaderLoss {
  const char* name;
  int signal;
  double remote_gone_s;  // bound for a worker of another host
};
class RanksLeaderLoss : public testing::TestWithParam<LeaderLoss> {};

// The daemon's own workers are killed with it. A worker of another host ends when its stream ends or is
// silent.
TEST_P(RanksLeaderLoss, LeavesNoWorker) {
  RankCluster cluster({.ranks = 2, .local_workers = 1});
  ClientStream stream(cluster.stub(), TokenRequest(0, 12, 400));
  ASSERT_TRUE(stream.WaitForTokens(8));
  const auto start = steady_clock::now();
  cluster.leader().Signal(GetParam().signal);
  EXPECT_EQ(cluster.remote(1).Wait(), 1) << cluster.remote(1).Stderr();
  const double seconds = std::chrono::duration<double>(steady_clock::now() - start).count();
  EXPECT_LT(seconds, GetParam().remote_gone_s + kSlackS);
  printf("%s: the remote worker was gone after %.1f s\n", GetParam().name, seconds);
  cluster.leader().Signal(SIGKILL);
  EXPECT_EQ(cluster.LeftRunning(kSlackS), "");
  EXPECT_FALSE(stream.End().ok());
}

INSTANTIATE_TEST_SUITE_P(Table, RanksLeaderLoss,
                         testing::Values(LeaderLoss{"Killed", SIGKILL, 3},
                                         LeaderLoss{"Stopped", SIGSTOP, kHeartbeatTimeoutS + 1 + 3}),
                         [](const auto& info) { return info.param.name; });

TEST(Ranks, TwoWorkersLostAtOnceCountAsOneFailure) {
  RankCluster cluster({.ranks = 4, .local_workers = 4, .restart_group = true});
  ClientStream stream(cluster.stub(), TokenRequest(0, 12, 400));
  ASSERT_TRUE(stream.WaitForTokens(8));
  const pid_t first = cluster.WorkerPid(1), second = cluster.WorkerPid(3);
  kill(first, SIGKILL);
  kill(second, SIGKILL);
  EXPECT_TRUE(stream.End().ok()) << stream.End().error_message();
  ClientStream again(cluster.stub(), TokenRequest(0, 12, 400));
  EXPECT_TRUE(again.End().ok());
  EXPECT_EQ(stream.token_ids(), again.token_ids());
  EXPECT_EQ(cluster.Metric("rank_failures_total"), 1);
  EXPECT_EQ(cluster.Metric("group_restarts_total"), 1);
  cluster.leader().Signal(SIGTERM);
  EXPECT_EQ(cluster.leader().Wait(), 0) << cluster.leader().Stderr();
  EXPECT_EQ(cluster.LeftRunning(kSlackS), "");
}

// Each loss comes after a new token of a stream, so none is in vain.
TEST(Ranks, TwentyLossesLoseNothing) {
  constexpr int kLosses = 20;
  constexpr int kStreams = 16;
  constexpr int kTokens = 800;
  RankCluster cluster({.ranks = 2,
                       .local_workers = 2,
                       .restart_group = true,
                       .sets = {"parallel.max_restarts=1000", "max_batch_size=16"}});
  std::vector<std::unique_ptr<ClientStream>> streams;
  for (int seed = 0; seed < kStreams; ++seed) {
    streams.push_back(std::make_unique<ClientStream>(cluster.stub(), TokenRequest(seed, 12, kTokens)));
  }
  int losses = 0;
  for (; losses < kLosses; ++losses) {
    ClientStream& watched = *streams[losses % kStreams];
    if (!watched.WaitForTokens(watched.token_ids().size() + 1)) break;  // it has ended
    kill(cluster.WorkerPid(losses % 2), SIGKILL);
    for (int tick = 0; tick < 6000 && cluster.Metric("group_restarts_total") < losses + 1; ++tick) {
    }
  }
  EXPECT_GT(losses, kLosses / 2);
  std::vector<std::vector<int32_t>> answers;
  for (auto& stream : streams) {
    EXPECT_TRUE(stream->End().ok()) << stream->End().error_message();
    answers.push_back(stream->token_ids());
  }
  for (int seed = 0; seed < kStreams; ++seed) {
    ClientStream again(cluster.stub(), TokenRequest(seed, 12, kTokens));
    EXPECT_TRUE(again.End().ok());
    EXPECT_EQ(again.token_ids(), answers[seed]) << "seed " << seed;
  }
  printf("%d losses, %.0f requests resumed, %.0f tokens replayed\n", losses,
         cluster.Metric("requests_resumed_total"), cluster.Metric("resume_replayed_tokens_total"));
  cluster.leader().Signal(SIGTERM);
  EXPECT_EQ(cluster.leader().Wait(), 0) << cluster.leader().Stderr();
}

TEST(Ranks, ARepeatedCrashEndsTheDaemon) {
  RankCluster cluster({.ranks = 2, .local_workers = 2, .restart_group = true});
  ClientStream stream(cluster.stub(), TokenRequest(0, 12, 3000));
  ASSERT_TRUE(stream.WaitForTokens(8));
  for (int crash = 0; crash < 6; ++crash) {
    const pid_t victim = cluster.WorkerPid(1);
    kill(victim, SIGKILL);
    if (crash == 5) break;
    for (int tick = 0; tick < 6000 && cluster.Metric("group_restarts_total") < crash + 1; ++tick) {
    }
    ASSERT_TRUE(cluster.WaitServing()) << cluster.leader().Stderr();
  }
  EXPECT_EQ(cluster.leader().Wait(), 1) << cluster.leader().Stderr();
  EXPECT_THAT(cluster.leader().Stderr(), HasSubstr("5 restarts within 10 min"));
  EXPECT_EQ(stream.End().error_code(), grpc::StatusCode::UNAVAILABLE);
  // It ends with the group, or before: it was in five lost steps, perhaps without a new token.
  EXPECT_THAT(stream.End().error_message(),
              testing::AnyOf(HasSubstr("5 restarts within 10 min"), HasSubstr("in a lost step 5 times")));
  EXPECT_EQ(cluster.LeftRunning(kSlackS), "");
}

TEST(Ranks, AWorkerWithAnotherConfigurationIsRefused) {
  RankCluster cluster({.ranks = 2, .local_workers = 2});
  ClientStream stream(cluster.stub(), TokenRequest(0, 12, 400));
  ASSERT_TRUE(stream.WaitForTokens(8));
  const RunResult result = cluster.RunWorker(1, {"max_batch_size=8"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_THAT(result.err, HasSubstr("max_batch_size: 8"));
  EXPECT_THAT(result.err, HasSubstr("max_batch_size: 4"));
  EXPECT_TRUE(stream.End().ok()) << "the group must go on";
}

TEST(Ranks, EightLeaveNothingBehindAfterTwoHundredRequestsWithCancels) {
  RankCluster cluster({.ranks = 8, .local_workers = 8, .sets = {"parallel.heartbeat_timeout_s=20"}});
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  const auto pick = [&random](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  int ended = 0, cancelled = 0;
  for (int wave = 0; wave < 5; ++wave) {
    std::vector<std::unique_ptr<ClientStream>> streams;
    for (int i = 0; i < 40; ++i) {
      streams.push_back(std::make_unique<ClientStream>(cluster.stub(),
                                                       TokenRequest(pick(0, 20), pick(1, 300), pick(1, 60))));
      if (pick(1, 3) > 1) continue;
      streams.back()->WaitForTokens(static_cast<size_t>(pick(0, 8)));
      streams.back()->Cancel();
    }
    for (auto& stream : streams) {
      const grpc::Status status = stream->End();
      EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
          << status.error_code() << " " << status.error_message();
      ++(status.ok() ? ended : cancelled);
    }
  }
  EXPECT_EQ(ended + cancelled, 200);
  EXPECT_GT(cancelled, 0);
  v1::GetLoadResponse load;
  const auto left = [&load] {
    return load.running() + load.waiting() + load.swapped() + load.slots_used() + load.blocks_used() +
           load.open_streams();
  };
  for (int tick = 0; tick < 1000; ++tick) {
    grpc::ClientContext context;
    ASSERT_TRUE(cluster.admin().GetLoad(&context, {}, &load).ok());
    if (left() == 0) break;
  }
  EXPECT_EQ(left(), 0) << load.ShortDebugString();
  EXPECT_EQ(cluster.Metric("rank_failures_total"), 0);
  cluster.leader().Signal(SIGTERM);
  EXPECT_EQ(cluster.leader().Wait(), 0) << cluster.leader().Stderr();
  EXPECT_EQ(cluster.LeftRunning(kSlackS), "");
}

}  // namespace
}  // namespace foredraft
