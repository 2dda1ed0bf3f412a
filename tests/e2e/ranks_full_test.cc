// Faults of a group beyond the table of lost_rank_test: the leader ends, two workers end at once, a crash
// repeats, a foreign worker dials in; and eight ranks under load. Full tier only.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <map>
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

// Streams of one cluster, a worker of which is lost again and again; each loss comes after a new token of a
// stream, so none is in vain.
class LostAgainAndAgain {
 public:
  LostAgainAndAgain(int streams, int tokens)
      : tokens_(tokens),
        cluster_({.ranks = 2,
                  .local_workers = 2,
                  .restart_group = true,
                  .sets = {"parallel.max_restarts=1000", "max_batch_size=16"}}) {
    for (int i = 0; i < streams; ++i) streams_.push_back(Start());
  }

  // A stream that has ended is followed by the next one, or, with `until_one_ends`, by no more losses.
  // Returns how many there were.
  int Lose(int count, bool until_one_ends) {
    for (int losses = 0; losses < count;) {
      Stream& watched = streams_[losses % streams_.size()];
      if (!watched.stream->WaitForTokens(watched.stream->token_ids().size() + 1)) {
        if (until_one_ends) return losses;
        End(watched);
        watched = Start();
        continue;
      }
      kill(cluster_.WorkerPid(losses % 2), SIGKILL);
      ++losses;
      for (int tick = 0; tick < 6000 && cluster_.Metric("group_restarts_total") < losses; ++tick) {
      }
    }
    return count;
  }

  // Every stream has ended well, with the tokens that its request gets undisturbed.
  void ExpectNothingLost() {
    for (Stream& stream : streams_) End(stream);
    for (const auto& [seed, token_ids] : answers_) {
      ClientStream again(cluster_.stub(), TokenRequest(seed, 12, tokens_));
      EXPECT_TRUE(again.End().ok());
      EXPECT_EQ(again.token_ids(), token_ids) << "seed " << seed;
    }
    printf("%zu streams, %.0f restarts, %.0f requests resumed, %.0f tokens replayed\n", answers_.size(),
           cluster_.Metric("group_restarts_total"), cluster_.Metric("requests_resumed_total"),
           cluster_.Metric("resume_replayed_tokens_total"));
    cluster_.leader().Signal(SIGTERM);
    EXPECT_EQ(cluster_.leader().Wait(), 0) << cluster_.leader().Stderr();
  }

 private:
  struct Stream {
    int seed;
    std::unique_ptr<ClientStream> stream;
  };

  Stream Start() {
    const int seed = next_seed_++;
    return {seed, std::make_unique<ClientStream>(cluster_.stub(), TokenRequest(seed, 12, tokens_))};
  }
  void End(Stream& stream) {
    const grpc::Status status = stream.stream->End();
    EXPECT_TRUE(status.ok()) << "seed " << stream.seed << ": " << status.error_message();
    answers_[stream.seed] = stream.stream->token_ids();
  }

  const int tokens_;
  int next_seed_ = 0;
  RankCluster cluster_;
  std::vector<Stream> streams_;
  std::map<int, std::vector<int32_t>> answers_;  // by seed
};

TEST(Ranks, TwentyLossesLoseNothing) {
  LostAgainAndAgain test(16, 800);
  EXPECT_GT(test.Lose(20, true), 10);
  test.ExpectNothingLost();
}

// No request of a few that are there at every loss is taken for its cause.
TEST(Ranks, TwoHundredLossesOfFewStreamsEndNone) {
  LostAgainAndAgain test(2, 400);
  EXPECT_EQ(test.Lose(200, false), 200);
  test.ExpectNothingLost();
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
