// Leader and workers over real streams on loopback, without a model: the executor of a worker answers each
// plan with tokens derived from the plan's number.

#include "ranks/leader.h"

#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/server_builder.h>
#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <mutex>
#include <optional>
#include <utility>

#include "base/log.h"
#include "ranks/group_secret.h"
#include "ranks/worker_session.h"
#include "tests/ranks/test_worker.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;

class LeaderTest : public GroupFixture {
 protected:
  void SetUp() override {
    LeaderFixture::SetUp();
    Open(TestLeaderOptions());
  }
};

TEST_F(LeaderTest, PassesPlansAndResultsAndStops) {
  TestWorker first(leader_->port(), 0), second(leader_->port(), 1);
  ASSERT_TRUE(WaitReady());
  const std::vector<WorkerView> views = leader_->Watch(0, milliseconds(0)).workers;
  EXPECT_EQ(views[1].block_count, kBlockCount);
  EXPECT_EQ(views[1].graph_count, 7);
  EXPECT_EQ(views[1].done_bytes, 5);
  EXPECT_EQ(views[0].device, "scripted");
  EXPECT_EQ(views[0].numerics_class, "cccccccc");
  Launch(1);
  for (uint64_t number = 2; number < 200; ++number) {
    Launch(number);  // one in flight, as the serving loop does
    ExpectResults(number - 1);
  }
  ExpectResults(199);
  leader_->Stop(kPatience);
  EXPECT_TRUE(first.End().ok());
  EXPECT_TRUE(second.End().ok());
}

TEST_F(LeaderTest, StaysHealthyWhileIdle) {
  TestWorker first(leader_->port(), 0), second(leader_->port(), 1);
  ASSERT_TRUE(WaitReady());
  EXPECT_FALSE(WaitUntil([this, until = steady_clock::now() + 3 * kHeartbeatTimeout](const auto&) {
                 return !leader_->health().ok() || steady_clock::now() > until;
               }) &&
               !leader_->health().ok())
      << leader_->health();
  Launch(1);
  ExpectResults(1);
  leader_->Stop(kPatience);
}

// Two ranks that share every request, one of which gives a token of its own.
TEST_F(LeaderTest, ARankThatDisagreesWithItsTensorGroupEndsIt) {
  LeaderOptions options = TestLeaderOptions();
  options.attention_tp = 2;
  options.limits = TestLimits(/*rank_count=*/1);
  std::atomic<int> disagreements = 0;
  options.disagreed = [&disagreements] { ++disagreements; };
  Open(options);
  TestWorker first(leader_->port(), 0, {.attention_tp = 2});
  TestWorker second(leader_->port(), 1, {.forge_at = 5, .attention_tp = 2});
  ASSERT_TRUE(WaitReady());
  ASSERT_EQ(leader_->executors().size(), 1);
  Executor& group = *leader_->executors()[0];
  const auto launch = [&group](uint64_t number) {
    IterationPlan plan = PlanOf(number);
    plan.ranks.resize(1);
    for (std::vector<int32_t>* rows : {&plan.prefill_rows, &plan.ended_prompts}) rows->resize(1);
    return group.Launch(plan);
  };
  for (uint64_t number = 1; number < 5; ++number) {
    ASSERT_TRUE(launch(number).ok());
    const absl::StatusOr<RankResult> result = group.Collect();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->slots.at(0).token_ids[0], number * 100 + 1);
  }
  ASSERT_TRUE(launch(5).ok());
  const absl::Status collected = group.Collect().status();
  if (collected.ok()) leader_->Abort(absl::InternalError("the difference was not noticed"), kPatience);
  ASSERT_EQ(collected,
            absl::UnavailableError("rank 1 lost: its result of iteration 5 differs from rank 0's"));
  EXPECT_EQ(disagreements, 1);
  const absl::Status lost = WaitLost();
  EXPECT_THAT(std::string(lost.message()), HasSubstr("its result of iteration 5 differs from rank 0's"));
  EXPECT_FALSE(first.End().ok());
  EXPECT_FALSE(second.End().ok());
  leader_->Abort(lost, kPatience);
}

// leader_parts_test covers every reason to refuse a worker.
TEST_F(LeaderTest, RefusesAMismatchedWorkerAndGoesOn) {
  const auto first = WorkerSession::Join(TestWorker::Options(leader_->port(), 0));
  ASSERT_TRUE(first.ok()) << first.status();
  WorkerOptions options = TestWorker::Options(leader_->port(), 1);
  options.identity.config_keys[1] = "max_batch_size: 8";
  const auto refused = WorkerSession::Join(options);
  EXPECT_EQ(refused.status(), absl::FailedPreconditionError(
                                  "configuration: max_batch_size: 8, the leader has max_batch_size: 16"));
  EXPECT_TRUE(leader_->health().ok());
}

// Workers have no tokenizer: the leader says which ids are tokens.
TEST_F(LeaderTest, WelcomesWorkersWithTheTokenCount) {
  const auto worker = WorkerSession::Join(TestWorker::Options(leader_->port(), 0));
  ASSERT_TRUE(worker.ok()) << worker.status();
  EXPECT_EQ((*worker)->token_count(), 1'000'000);
  EXPECT_EQ((*worker)->missing_tokens(), std::vector<int32_t>({3, 999'999}));
}

TEST_F(LeaderTest, RefusesASecondWorkerOnOneGpuAndLogsBoth) {
  std::mutex mutex;
  std::vector<std::string> lines;
  InstallLogSink([&](LogLevel, std::string_view line, const LogFields&) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line);
  });
  WorkerOptions options = TestWorker::Options(leader_->port(), 0);
  options.gpu = "GPU-40 at 0000:1B:00.0";
  const auto first = WorkerSession::Join(options);
  ASSERT_TRUE(first.ok()) << first.status();
  options.rank = 1;
  const auto refused = WorkerSession::Join(options);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("GPU-40 at 0000:1B:00.0: rank 0, process "));
  options.gpu = "GPU-41 at 0000:1C:00.0";
  EXPECT_TRUE(WorkerSession::Join(options).ok());
  std::lock_guard<std::mutex> lock(mutex);
  EXPECT_THAT(lines,
              Contains(AllOf(HasSubstr("rank 0 joined: process "), HasSubstr(", GPU-40 at 0000:1B:00.0"))));
  EXPECT_THAT(lines, Contains(AllOf(HasSubstr("refused a worker, rank 1 "), HasSubstr("has this GPU"))));
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
}

TEST_F(LeaderTest, ARankIsTakenOnce) {
  TestWorker first(leader_->port(), 0), second(leader_->port(), 1);
  ASSERT_TRUE(WaitReady());
  WorkerOptions options = TestWorker::Options(leader_->port(), 1);
  options.join_timeout = milliseconds(300);
  const auto late = WorkerSession::Join(options);
  ASSERT_FALSE(late.ok());
  EXPECT_THAT(std::string(late.status().message()), HasSubstr("rank 1 is taken by process"));
  Launch(1);
  ExpectResults(1);
  leader_->Stop(kPatience);
}

TEST_F(LeaderTest, AWorkerDialsUntilItsLeaderListens) {
  const int port = leader_->port();
  leader_.reset();
  TestWorker first(port, 0);
  LeaderOptions options = TestLeaderOptions();
  options.address = "127.0.0.1:" + std::to_string(port);
  Open(options);
  TestWorker second(port, 1);
  ASSERT_TRUE(WaitReady());
  leader_->Stop(kPatience);
  EXPECT_TRUE(first.End().ok());
}

TEST_F(LeaderTest, ALostWorkerEndsTheGroupAfterTheResultsThatHaveArrived) {
  auto first = std::make_unique<TestWorker>(leader_->port(), 0);
  TestWorker second(leader_->port(), 1, {.fail_at = 2});
  ASSERT_TRUE(WaitReady());
  Launch(1);
  EXPECT_TRUE(leader_->executors()[0]->Collect().ok());
  Launch(2);
  const absl::Status lost = WaitLost();
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(lost.message(), "rank 1 lost: out of tokens");
  const absl::StatusOr<RankResult> before = leader_->executors()[1]->Collect();
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->number, 1u);
  for (Executor* executor : leader_->executors()) {
    EXPECT_EQ(executor->Launch(PlanOf(3)), lost);
  }
  EXPECT_EQ(leader_->executors()[1]->Collect().status(), lost);
  EXPECT_THAT(std::string(first->End().message()), HasSubstr("rank 1 lost"))
      << "the other workers must be told";
  EXPECT_FALSE(second.End().ok());
  leader_->Abort(lost, kPatience);

  leader_->BeginGroup();
  EXPECT_TRUE(leader_->health().ok());
  TestWorker third(leader_->port(), 0), fourth(leader_->port(), 1);
  ASSERT_TRUE(WaitReady());
  Launch(1);
  ExpectResults(1);
  leader_->Stop(kPatience);
}

TEST_F(LeaderTest, AMissingResultEndsTheGroup) {
  LeaderOptions options = TestLeaderOptions();
  options.step_timeout = milliseconds(1000);
  Open(options);
  TestWorker first(leader_->port(), 0), second(leader_->port(), 1, {.hang_at = 1});
  ASSERT_TRUE(WaitReady());
  Launch(1);
  EXPECT_TRUE(leader_->executors()[0]->Collect().ok());
  const absl::Status lost = leader_->executors()[1]->Collect().status();
  EXPECT_EQ(lost.message(), "rank 1 lost: no result within 1.0 s");
  EXPECT_FALSE(first.End().ok());
  EXPECT_FALSE(second.End().ok()) << "must be aborted in its step";
}

// The peer joins and then sends nothing, like a stopped process or a cut network.
TEST_F(LeaderTest, ASilentWorkerIsLostWithinTheTimeout) {
  TestWorker first(leader_->port(), 0);
  const auto stub = worker::v1::WorkerService::NewStub(grpc::CreateChannel(
      "127.0.0.1:" + std::to_string(leader_->port()), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const std::string nonce = MakeNonce();
  context.AddMetadata("authorization", OpeningOf(kSecret, nonce));
  const auto stream = stub->Work(&context);
  worker::v1::LeaderMessage first_message;
  ASSERT_TRUE(stream->Read(&first_message));
  worker::v1::WorkerMessage join;
  join.mutable_join()->set_rank(1);
  join.mutable_join()->set_version("0.1.0");
  join.mutable_join()->set_model_hash("aaaaaaaa");
  for (const std::string& key : Identity().config_keys) join.mutable_join()->add_config_keys(key);
  join.mutable_join()->set_numerics_class("cccccccc");
  join.mutable_join()->set_proof(
      ProofOf(GroupEnd::kWorker, kSecret, nonce, first_message.challenge().nonce()));
  ASSERT_TRUE(stream->Write(join));
  ASSERT_TRUE(WaitUntil([](const auto& views) { return views[1].state == WorkerState::kJoined; }));
  const auto start = steady_clock::now();
  const absl::Status lost = WaitLost();
  EXPECT_THAT(std::string(lost.message()), HasSubstr("rank 1 lost: silent for"));
  EXPECT_LT(steady_clock::now() - start, 2 * kHeartbeatTimeout);
  EXPECT_FALSE(first.End().ok());
  context.TryCancel();
  worker::v1::LeaderMessage ignored;
  while (stream->Read(&ignored)) {
  }
  stream->Finish();
}

TEST_F(LeaderTest, WorkersEndWhenTheLeaderIsGone) {
  TestWorker first(leader_->port(), 0), second(leader_->port(), 1);
  ASSERT_TRUE(WaitReady());
  leader_.reset();
  EXPECT_EQ(first.End().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(second.End().code(), absl::StatusCode::kUnavailable);
}

// A leader that proves itself and sends nothing after welcome.
class MuteService final : public worker::v1::WorkerService::Service {
  grpc::Status Work(
      grpc::ServerContext* context,
      grpc::ServerReaderWriter<worker::v1::LeaderMessage, worker::v1::WorkerMessage>* stream) override {
    const auto& authorization = context->client_metadata().find("authorization")->second;
    const std::optional<Opening> opening =
        ReadOpening({authorization.data(), authorization.size()}, {kSecret});
    worker::v1::LeaderMessage challenge, welcome;
    challenge.mutable_challenge()->set_nonce("nonce");
    challenge.mutable_challenge()->set_proof(
        ProofOf(GroupEnd::kLeader, opening->secret, opening->worker_nonce, "nonce"));
    stream->Write(challenge);
    welcome.mutable_welcome();
    stream->Write(welcome);
    worker::v1::WorkerMessage ignored;
    while (!context->IsCancelled() && stream->Read(&ignored)) {
    }
    return grpc::Status::OK;
  }
};

TEST(WorkerSession, EndsWhenTheLeaderIsSilent) {
  MuteService mute;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&mute);
  const auto server = builder.BuildAndStart();
  auto session = WorkerSession::Join(TestWorker::Options(port, 0));
  ASSERT_TRUE(session.ok()) << session.status();
  std::promise<absl::Status> told;
  (*session)->SetOnLost([&told](const absl::Status& status) { told.set_value(status); });
  ScriptedExecutor executor;
  const absl::Status end = (*session)->Run(executor, 0, TestLimits(/*rank_count=*/1));
  EXPECT_THAT(std::string(end.message()), HasSubstr("the leader was silent for"));
  EXPECT_EQ(told.get_future().get(), end);
  session->reset();
  server->Shutdown(std::chrono::system_clock::now());
}

TEST(WorkerSession, NamesTheAddressThatDidNotAnswer) {
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  WorkerOptions options = TestWorker::Options(1, 3);
  options.join_timeout = milliseconds(500);
  const auto session = WorkerSession::Join(options);
  EXPECT_EQ(session.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(session.status().message()), HasSubstr("no group at 127.0.0.1:1"));
  InstallLogSink(nullptr);
}

}  // namespace
}  // namespace foredraft
