// Worker faults combined with states of the group (docs/invariants.md, lost-rank and resume). No process is
// left running past the bound, and the metrics count the loss. With restart: group the daemon serves again by
// itself and its streams go on with the same tokens; otherwise, or with resume: false, they end with
// UNAVAILABLE after all their tokens.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/e2e/rank_cluster.h"

namespace foredraft {
namespace {

using std::chrono::steady_clock;
using testing::HasSubstr;

enum class Fault { kKill, kStop, kCut };
enum class Moment { kStart, kPrefill, kDecode, kDrain };

struct FaultCase {
  const char* name;
  Fault fault;
  Moment moment;
  bool restart_group;
  bool fast;  // in the fast tier too
  bool resume = true;
};

constexpr FaultCase kCases[] = {
    {"KillAtStart", Fault::kKill, Moment::kStart, false, true},
    {"KillInPrefill", Fault::kKill, Moment::kPrefill, false, false},
    {"KillInDecode", Fault::kKill, Moment::kDecode, false, false},
    {"KillInDrain", Fault::kKill, Moment::kDrain, false, false},
    {"StopAtStart", Fault::kStop, Moment::kStart, false, false},
    {"StopInPrefill", Fault::kStop, Moment::kPrefill, false, false},
    {"StopInDecode", Fault::kStop, Moment::kDecode, false, false},
    {"StopInDrain", Fault::kStop, Moment::kDrain, false, false},
    {"CutAtStart", Fault::kCut, Moment::kStart, false, false},
    {"CutInPrefill", Fault::kCut, Moment::kPrefill, false, false},
    {"CutInDecode", Fault::kCut, Moment::kDecode, false, false},
    {"CutInDrain", Fault::kCut, Moment::kDrain, false, false},
    {"KillInPrefillOfAGroup", Fault::kKill, Moment::kPrefill, true, false},
    {"KillInDecodeOfAGroup", Fault::kKill, Moment::kDecode, true, true},
    {"StopInPrefillOfAGroup", Fault::kStop, Moment::kPrefill, true, false},
    {"StopInDecodeOfAGroup", Fault::kStop, Moment::kDecode, true, false},
    {"CutInPrefillOfAGroup", Fault::kCut, Moment::kPrefill, true, false},
    {"CutInDecodeOfAGroup", Fault::kCut, Moment::kDecode, true, false},
    {"KillInDecodeOfAGroupWithoutResume", Fault::kKill, Moment::kDecode, true, false, false},
};

std::vector<FaultCase> CasesOfThisTier() {
  std::vector<FaultCase> cases;
  for (const FaultCase& fault_case : kCases) {
    if (fault_case.fast || std::getenv("FOREDRAFT_FULL") != nullptr) cases.push_back(fault_case);
  }
  return cases;
}

// The documented bounds plus slack for a busy machine. The leader sees a dead process at once and a silent
// one after the heartbeat timeout; then workers have 1 s to close their streams, and 2 s from SIGTERM to
// SIGKILL. A worker that lost its leader ends within 3 s.
#ifdef __SANITIZE_ADDRESS__
constexpr double kSlackS = 30;
#else
constexpr double kSlackS = 5;
#endif
double SeenWithin(Fault fault) { return (fault == Fault::kKill ? 0 : kHeartbeatTimeoutS + 1) + kSlackS; }
double GoneWithin(Fault fault) { return SeenWithin(fault) + 3 + 3; }

// The tokens of each request on one rank, one request at a time.
const std::vector<std::vector<int32_t>>& Expected() {
  static const std::vector<std::vector<int32_t>> expected = [] {
    std::vector<std::vector<int32_t>> answers;
    RankCluster cluster({.ranks = 1, .local_workers = 1});
    for (int seed = 0; seed < 4; ++seed) {
      ClientStream stream(cluster.stub(), TokenRequest(seed, 12, 400));
      EXPECT_TRUE(stream.End().ok());
      answers.push_back(stream.token_ids());
    }
    return answers;
  }();
  return expected;
}

class LostRank : public testing::TestWithParam<FaultCase> {
 protected:
  // For faults that cut the network, rank 1 is behind a proxy.
  static ClusterOptions OptionsOf(const FaultCase& fault_case) {
    ClusterOptions options;
    options.restart_group = fault_case.restart_group;
    options.local_workers = fault_case.fault == Fault::kCut ? 1 : 2;
    options.sets = {"max_num_tokens=64"};  // long prompts take many iterations
    if (!fault_case.resume) options.sets.push_back("parallel.resume=false");
    return options;
  }
  void Strike(RankCluster& cluster) {
    switch (GetParam().fault) {
      case Fault::kKill:
        kill(cluster.WorkerPid(1), SIGKILL);
        break;
      case Fault::kStop:
        kill(cluster.WorkerPid(1), SIGSTOP);
        break;
      case Fault::kCut:
        cluster.proxy(1).Cut();
        break;
    }
  }
};

void ExpectTokensSoFar(ClientStream& stream, int seed) {
  const std::vector<int32_t> tokens = stream.token_ids();
  const std::vector<int32_t>& whole = Expected()[seed];
  ASSERT_LT(tokens.size(), whole.size()) << "the fault came too late";
  EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), whole.begin())) << "seed " << seed;
}

constexpr int kLongPrompt = 3000;
constexpr int kLongPromptTokens = 4;

// Starts streams on both ranks. Returns once all prompts are in prefill, or once all streams have tokens.
std::vector<std::unique_ptr<ClientStream>> StartStreams(RankCluster& cluster, Moment moment) {
  std::vector<std::unique_ptr<ClientStream>> streams;
  for (int seed = 0; seed < 4; ++seed) {
    const bool prefill = moment == Moment::kPrefill;
    streams.push_back(std::make_unique<ClientStream>(
        cluster.stub(),
        prefill ? TokenRequest(seed, kLongPrompt, kLongPromptTokens) : TokenRequest(seed, 12, 400)));
  }
  if (moment == Moment::kPrefill) {
    for (int tick = 0; tick < 6000 && cluster.Metric("requests_running") < 4; ++tick) {
    }
  } else {
    for (auto& stream : streams) EXPECT_TRUE(stream->WaitForTokens(8));
  }
  return streams;
}

// The streams that were open at the fault end as if there had been none.
void ExpectStreamsGoOn(RankCluster& cluster, std::vector<std::unique_ptr<ClientStream>>& streams,
                       Moment moment) {
  int tokens = 0;
  for (size_t seed = 0; seed < streams.size(); ++seed) {
    const grpc::Status status = streams[seed]->End();
    EXPECT_TRUE(status.ok()) << status.error_message();
    tokens += static_cast<int>(streams[seed]->token_ids().size());
    if (moment == Moment::kPrefill) {
      ClientStream again(cluster.stub(),
                         TokenRequest(static_cast<int>(seed), kLongPrompt, kLongPromptTokens));
      EXPECT_TRUE(again.End().ok());
      EXPECT_EQ(streams[seed]->token_ids(), again.token_ids()) << seed;
    } else {
      EXPECT_EQ(streams[seed]->token_ids(), Expected()[seed]) << seed;
    }
  }
  EXPECT_EQ(cluster.Metric("requests_resumed_total"), static_cast<double>(streams.size()));
  if (moment == Moment::kDecode) {
    EXPECT_GE(cluster.Metric("resume_replayed_tokens_total"), 8 * static_cast<double>(streams.size()));
    EXPECT_EQ(cluster.Metric("generation_tokens_total"), tokens);  // each is counted once
  }
}

void RestartLostWorker(RankCluster& cluster, const FaultCase& fault_case) {
  if (fault_case.fault == Fault::kCut) {
    EXPECT_EQ(cluster.remote(1).Wait(), 1) << "a worker that has lost its leader must end by itself";
    cluster.StartRemote(1);
  }
}

void ExpectServiceIsBack(RankCluster& cluster) {
  const auto start = steady_clock::now();
  ASSERT_TRUE(cluster.leader().WaitForStderr("serving again")) << cluster.leader().Stderr();
  ASSERT_TRUE(cluster.WaitServing());
  testing::Test::RecordProperty("back_after_s",
                                static_cast<int>((steady_clock::now() - start) / std::chrono::seconds(1)));
  for (int seed = 0; seed < 2; ++seed) {
    ClientStream stream(cluster.stub(), TokenRequest(seed, 12, 400));
    EXPECT_TRUE(stream.End().ok()) << stream.End().error_message();
    EXPECT_EQ(stream.token_ids(), Expected()[seed]);
  }
  EXPECT_EQ(cluster.Metric("rank_failures_total"), 1);
  EXPECT_EQ(cluster.Metric("group_restarts_total"), 1);
  cluster.leader().Signal(SIGTERM);
  EXPECT_EQ(cluster.leader().Wait(), 0) << cluster.leader().Stderr();
}

TEST_P(LostRank, LeavesNothingBehind) {
  const FaultCase& fault_case = GetParam();
  if (fault_case.moment != Moment::kStart) Expected();
  ClusterOptions options = OptionsOf(fault_case);
  if (fault_case.moment == Moment::kStart) {
    options.wait_until_serving = false;
    options.ranks = 4;  // ranks 0 and 1 wait for 2 and 3, which do not start
    options.absent_ranks = 2;
  }
  RankCluster cluster(options);
  std::vector<std::unique_ptr<ClientStream>> streams;
  if (fault_case.moment == Moment::kStart) {
    ASSERT_TRUE(cluster.leader().WaitForStderr("rank 1 joined")) << cluster.leader().Stderr();
  } else {
    streams = StartStreams(cluster, fault_case.moment);
  }
  if (fault_case.moment == Moment::kDrain) {
    cluster.leader().Signal(SIGTERM);
    ASSERT_TRUE(cluster.leader().WaitForStderr("draining: 4 calls open")) << cluster.leader().Stderr();
  }

  const auto strike = steady_clock::now();
  Strike(cluster);
  if (fault_case.restart_group && fault_case.resume) {
    RestartLostWorker(cluster, fault_case);
    ExpectStreamsGoOn(cluster, streams, fault_case.moment);
    printf("%s: all streams ended whole after %.1f s\n", fault_case.name,
           std::chrono::duration<double>(steady_clock::now() - strike).count());
    return ExpectServiceIsBack(cluster);
  }
  for (size_t seed = 0; seed < streams.size(); ++seed) {
    const grpc::Status status = streams[seed]->End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAVAILABLE) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr("lost"));
    if (fault_case.moment != Moment::kPrefill) ExpectTokensSoFar(*streams[seed], static_cast<int>(seed));
  }
  const double seen = std::chrono::duration<double>(steady_clock::now() - strike).count();
  EXPECT_LT(seen, SeenWithin(fault_case.fault));
  if (fault_case.restart_group) return ExpectServiceIsBack(cluster);
  EXPECT_EQ(cluster.leader().Wait(), 1) << cluster.leader().Stderr();
  EXPECT_EQ(cluster.LeftRunning(GoneWithin(fault_case.fault)), "");
  const double gone = std::chrono::duration<double>(steady_clock::now() - strike).count();
  EXPECT_LT(gone, GoneWithin(fault_case.fault));
  if (fault_case.fault == Fault::kStop && fault_case.moment == Moment::kDecode) {
    // Rank 0 waits for the stopped rank 1. The abort of its collectives must end it, not the 3 s limit.
    EXPECT_THAT(cluster.leader().Stderr(), testing::Not(HasSubstr("rank 0 did not end by itself")));
  }
  RecordProperty("seen_ms", static_cast<int>(seen * 1000));
  RecordProperty("gone_ms", static_cast<int>(gone * 1000));
  printf("%s: streams ended after %.1f s, all gone after %.1f s\n", fault_case.name, seen, gone);
}

// A supervisor that stops the daemon then must not take it for a failure.
TEST(Drain, WhileTheGroupIsDownIsNoFailure) {
  RankCluster cluster({.local_workers = 1, .restart_group = true});
  cluster.remote(1).Signal(SIGKILL);  // the test plays its supervisor, and does not start it again
  ASSERT_TRUE(cluster.leader().WaitForStderr("all ranks restart")) << cluster.leader().Stderr();
  cluster.leader().Signal(SIGTERM);
  EXPECT_EQ(cluster.leader().Wait(), 0) << cluster.leader().Stderr();
  EXPECT_EQ(cluster.LeftRunning(10), "");
}

// The operator changes the token of the workers while strangers hold on to the port: who joins after that
// needs the new one, and gets in.
TEST(WorkerPort, ANewTokenCountsAfterARestartAmongStrangers) {
  RankCluster cluster({.local_workers = 1, .restart_group = true});
  const std::string old_token = cluster.token_file() + "-old";
  std::filesystem::copy_file(cluster.token_file(), old_token,
                             std::filesystem::copy_options::overwrite_existing);
  std::ofstream(cluster.token_file(), std::ios::trunc) << "short\n";
  cluster.leader().Signal(SIGHUP);
  ASSERT_TRUE(cluster.leader().WaitForStderr("the workers' token in force stays"))
      << cluster.leader().Stderr();
  std::ofstream(cluster.token_file(), std::ios::trunc) << "another-secret-of-this-test-0123456789\n";
  cluster.leader().Signal(SIGHUP);
  ASSERT_TRUE(cluster.leader().WaitForStderr(": a new token")) << cluster.leader().Stderr();

  std::vector<int> strangers;
  for (int i = 0; i < 200; ++i) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(cluster.leader_port()));
    strangers.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(strangers.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ClientStream before(cluster.stub(), TokenRequest(1, 8, 20));
  EXPECT_TRUE(before.End().ok()) << "the ranks that have joined stay";
  cluster.remote(1).Signal(SIGKILL);
  ASSERT_TRUE(cluster.leader().WaitForStderr("all ranks restart")) << cluster.leader().Stderr();
  const RunResult old = cluster.RunWorker(1, {"parallel.token_file=" + old_token});
  EXPECT_EQ(old.exit_code, 1);
  EXPECT_THAT(old.err, HasSubstr("parallel.token_file must have the same secret there and here"));
  cluster.StartRemote(1);
  ASSERT_TRUE(cluster.leader().WaitForStderr("serving again")) << cluster.leader().Stderr();
  ClientStream after(cluster.stub(), TokenRequest(1, 8, 20));
  EXPECT_TRUE(after.End().ok());
  EXPECT_EQ(after.token_ids(), before.token_ids());
  EXPECT_GE(cluster.Metric("worker_connections_refused_total"), 200 - 2 * 64 - 2);
  for (const int fd : strangers) close(fd);
  std::filesystem::remove(old_token);
}

TEST(WorkerCommand, RefusesWithOneLine) {
  struct Case {
    std::vector<std::string> arguments;
    int exit_code;
    std::string says;
  };
  for (const Case& test : std::vector<Case>{
           {{}, 2, "--leader is required"},
           {{"--leader", "127.0.0.1:1"}, 2, "--rank is required"},
           {{"--leader", "127.0.0.1:1", "--rank", "8"}, 1, "--rank: 8, allowed 0..1"},
           {{"--leader", "10.0.0.1:1", "--rank", "0"},
            1,
            "rank 0: --leader: 10.0.0.1:1, allowed a loopback address"},
           {{"--leader", "127.0.0.1:1", "--rank", "0", "--set", "cpu.pin=true"}, 1, "cpu.pin: true"},
       }) {
    std::vector<std::string> arguments = {
        FOREDRAFT_BINARY,          "worker", "--config",         "deploy/configs/abacus-cpu.yaml", "--set",
        "parallel.attention_dp=2", "--set",  "parallel.moe_ep=2"};
    arguments.insert(arguments.end(), test.arguments.begin(), test.arguments.end());
    const RunResult result = RunProgram(arguments);
    EXPECT_EQ(result.exit_code, test.exit_code) << result.err;
    EXPECT_THAT(result.err, HasSubstr(test.says));
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  }
}

// One tensor group: either rank may be lost, and all open requests go on.
TEST(LostTensorGroup, GoesOnWithEveryRequest) {
  Expected();
  RankCluster cluster({.share_requests = true, .restart_group = true, .sets = {"max_num_tokens=64"}});
  for (int rank = 0; rank < 2; ++rank) {
    std::vector<std::unique_ptr<ClientStream>> streams = StartStreams(cluster, Moment::kDecode);
    kill(cluster.WorkerPid(rank), SIGKILL);
    for (size_t seed = 0; seed < streams.size(); ++seed) {
      const grpc::Status status = streams[seed]->End();
      EXPECT_TRUE(status.ok()) << status.error_message();
      EXPECT_EQ(streams[seed]->token_ids(), Expected()[seed]) << "rank " << rank << ", seed " << seed;
    }
    EXPECT_EQ(cluster.Metric("group_restarts_total"), rank + 1);
  }
  EXPECT_EQ(cluster.Metric("rank_disagreements_total"), 0);
  EXPECT_GE(cluster.Metric("requests_resumed_total"), 5);
  cluster.leader().Signal(SIGTERM);
  EXPECT_EQ(cluster.leader().Wait(), 0) << cluster.leader().Stderr();
  EXPECT_EQ(cluster.LeftRunning(kSlackS), "");
}

// The daemon's flag --set max_batch_size wins over its environment. The workers inherit the flag's value:
// their environment must not override it.
TEST(WorkerCommand, TakesTheDaemonsConfiguration) {
  setenv("FOREDRAFT_MAX_BATCH_SIZE", "8", 1);
  RankCluster cluster({});
  unsetenv("FOREDRAFT_MAX_BATCH_SIZE");
  ClientStream stream(cluster.stub(), TokenRequest(0, 12, 20));
  EXPECT_TRUE(stream.End().ok());
}

INSTANTIATE_TEST_SUITE_P(Table, LostRank, testing::ValuesIn(CasesOfThisTier()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
