// A worker that lies, or that is none: what it sends loses its rank with a line that names the field, and
// never ends the leader.

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <limits>
#include <mutex>
#include <utility>

#include "absl/strings/escaping.h"
#include "ranks/group_secret.h"
#include "ranks/plan_codec.h"
#include "tests/ranks/leader_fixture.h"

namespace foredraft {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int32_t kVocab = 1000;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

worker::v1::WorkerMessage JoinMessage() {
  worker::v1::WorkerMessage message;
  worker::v1::WorkerJoin& join = *message.mutable_join();
  join.set_version("0.1.0");
  join.set_model_hash("aaaaaaaa");
  for (const std::string& key : Identity().config_keys) join.add_config_keys(key);
  join.set_numerics_class("cccccccc");
  join.set_host("here");
  join.set_pid(7);
  return message;
}

worker::v1::WorkerMessage ReadyMessage() {
  worker::v1::WorkerMessage message;
  message.mutable_ready()->set_block_count(kBlockCount);
  message.mutable_ready()->set_graph_count(7);
  return message;
}

// Slot 4 ends its prompt, with logprobs; slot 2 has three tokens already.
IterationPlan FirstPlan() {
  IterationPlan plan{
      .number = 1, .draft_len = 3, .decode_bucket = 2, .prefill_rows = {5}, .ended_prompts = {1}};
  RankPlan& rank = plan.ranks.emplace_back();
  rank.admissions = {
      {.slot = 4, .logprob_count = 2, .draft_cap = 3, .prompt_len = 5, .length_limit = 20, .stop_ids = {77}},
      {.slot = 2, .draft_cap = 3, .prompt_len = 1, .length_limit = 20, .stop_ids = {77}}};
  rank.prefill_chunks = {{.slot = 4, .token_ids = {1, 2, 3, 4, 5}, .last = true},
                         {.slot = 2, .token_ids = {1}, .last = true}};
  rank.live_slots = {4, 2};
  return plan;
}

RankResult FirstResult() {
  const auto logprob = [](int32_t token) {
    return TokenLogprob{.token_id = token, .logprob = -0.5f, .top = {{token, -0.5f}, {30, -0.5f}}};
  };
  return {.number = 1,
          .slots = {{.slot = 4,
                     .token_ids = {11, 12},
                     .first_token = true,
                     .length = 6,
                     .logprobs = {logprob(11), logprob(12)}},
                    {.slot = 2,
                     .token_ids = {21, 22, 23, 24},
                     .first_token = true,
                     .length = 4,
                     .drafts_verified = 3,
                     .relaxed_count = 1}},
          .decode_seconds = 0.01};
}

worker::v1::WorkerMessage ResultMessage(const RankResult& result = FirstResult()) {
  worker::v1::WorkerMessage message;
  message.set_result(EncodeResult(result));
  return message;
}

const std::string& WorkerNonce() {
  static const std::string nonce = MakeNonce();
  return nonce;
}

// One end of a worker's stream, without a worker. It knows the secret, whatever its call's `authorization`
// says.
class FakeWorker {
 public:
  explicit FakeWorker(
      int port, const std::string& authorization = OpeningOf(kSecret, WorkerNonce()),
      const std::shared_ptr<grpc::ChannelCredentials>& credentials = grpc::InsecureChannelCredentials())
      : stub_(worker::v1::WorkerService::NewStub(
            grpc::CreateChannel("127.0.0.1:" + std::to_string(port), credentials))) {
    if (!authorization.empty()) context_.AddMetadata("authorization", authorization);
    context_.set_deadline(std::chrono::system_clock::now() + kPatience);
    stream_ = stub_->Work(&context_);
  }
  ~FakeWorker() {
    context_.TryCancel();
    End();
  }
  void Send(const worker::v1::WorkerMessage& message) { stream_->Write(message); }
  // Answers the leader's challenge in `join`, and sends it.
  void Prove(worker::v1::WorkerMessage join) {
    const worker::v1::WorkerChallenge challenge = Read().challenge();
    EXPECT_EQ(challenge.proof(), ProofOf(GroupEnd::kLeader, kSecret, WorkerNonce(), challenge.nonce()));
    join.mutable_join()->set_proof(ProofOf(GroupEnd::kWorker, kSecret, WorkerNonce(), challenge.nonce()));
    Send(join);
  }
  // The next message that is no heartbeat; without content if the stream has ended.
  worker::v1::LeaderMessage Read() {
    worker::v1::LeaderMessage message;
    while (stream_->Read(&message)) {
      if (!message.has_heartbeat()) return message;
    }
    return {};
  }
  grpc::Status End() {
    if (!ended_) {
      worker::v1::LeaderMessage ignored;
      while (stream_->Read(&ignored)) {
      }
      status_ = stream_->Finish();
      ended_ = true;
    }
    return status_;
  }

 private:
  std::unique_ptr<worker::v1::WorkerService::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<worker::v1::WorkerMessage, worker::v1::LeaderMessage>> stream_;
  bool ended_ = false;
  grpc::Status status_;
};

struct Forgery {
  const char* says;  // in the reason of the loss
  std::function<void(worker::v1::WorkerMessage&)> forge;
};

struct ForgedResult {
  const char* says;
  std::function<void(RankResult&)> forge;
};

class ForgedMessages : public LeaderFixture {
 protected:
  void SetUp() override {
    LeaderFixture::SetUp();
    LeaderOptions options = TestLeaderOptions();
    options.rank_count = 1;
    options.limits = TestLimits(/*rank_count=*/1);
    options.limits.vocab_size = kVocab;
    options.block_count = 0;  // the rank says how many it has
    options.join_timeout = milliseconds(700);
    Open(options);
  }
  // A life of the group in which the worker says `message` at its turn.
  void ExpectLost(const worker::v1::WorkerMessage& message, const std::string& says, bool ready) {
    SCOPED_TRACE(says);
    FakeWorker worker(leader_->port());
    worker.Prove(JoinMessage());
    if (ready) {
      worker.Send(ReadyMessage());
      ASSERT_TRUE(WaitReady());
      ASSERT_TRUE(leader_->executors()[0]->Launch(FirstPlan()).ok());
      ASSERT_TRUE(worker.Read().has_welcome());
      ASSERT_TRUE(worker.Read().has_plan());
    }
    worker.Send(message);
    const absl::Status lost = WaitLost();
    EXPECT_THAT(std::string(lost.message()), testing::StartsWith("rank 0 lost: "));
    EXPECT_THAT(std::string(lost.message()), HasSubstr(says));
    EXPECT_THAT(std::string(lost.message()), Not(HasSubstr("\n")));
    if (ready) {
      worker.Send(ResultMessage());  // the truth, too late
      EXPECT_EQ(leader_->executors()[0]->Collect().status(), lost);
    }
    leader_->Abort(lost, milliseconds(0));
    leader_->BeginGroup();
  }
};

TEST_F(ForgedMessages, AcceptsAnHonestWorker) {
  FakeWorker worker(leader_->port());
  worker.Prove(JoinMessage());
  worker.Send(ReadyMessage());
  ASSERT_TRUE(WaitReady());
  ASSERT_TRUE(leader_->executors()[0]->Launch(FirstPlan()).ok());
  worker.Send(ResultMessage());
  const absl::StatusOr<RankResult> result = leader_->executors()[0]->Collect();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_THAT(result->slots[1].token_ids, ElementsAre(21, 22, 23, 24));
  worker.Send(ResultMessage());
  EXPECT_THAT(std::string(WaitLost().message()), HasSubstr("result: one without a plan"));
}

// What plan_codec_test tries of every field, here through the stream, for some.
TEST_F(ForgedMessages, OfAResultLoseTheRank) {
  const std::vector<ForgedResult> forgeries = {
      {"result.number: 2, allowed 1", [](auto& r) { r.number = 2; }},
      {"result.prefill_seconds: nan", [](auto& r) { r.prefill_seconds = kNaN; }},
      {"result.slots size: 0, allowed 2", [](auto& r) { r.slots.clear(); }},
      {"result.slots.slot: 2, allowed 4", [](auto& r) { r.slots[0].slot = 2; }},
      {"result.slots.token_ids: 1000, allowed 0..999", [](auto& r) { r.slots[0].token_ids[1] = 1000; }},
      {"result.slots.token_ids size: 6, allowed 0..5", [](auto& r) { r.slots[1].token_ids.resize(6); }},
      {"result.slots.length: -2147483648", [](auto& r) { r.slots[0].length = INT32_MIN; }},
      {"result.slots.logprobs.top.logprob: nan",
       [](auto& r) { r.slots[0].logprobs[1].top[1].logprob = static_cast<float>(kNaN); }},
  };
  for (const ForgedResult& forgery : forgeries) {
    RankResult result = FirstResult();
    forgery.forge(result);
    ExpectLost(ResultMessage(result), forgery.says, /*ready=*/true);
  }
  worker::v1::WorkerMessage cut = ResultMessage();
  cut.mutable_result()->pop_back();
  ExpectLost(cut, "result.replayed: the message ends there", /*ready=*/true);
}

// The scheduler, which knows the sequences, refuses what is within all ranges.
TEST_F(ForgedMessages, ARefusedResultLosesTheRank) {
  FakeWorker worker(leader_->port());
  worker.Prove(JoinMessage());
  worker.Send(ReadyMessage());
  ASSERT_TRUE(WaitReady());
  ASSERT_TRUE(leader_->executors()[0]->Launch(FirstPlan()).ok());
  worker.Send(ResultMessage());
  ASSERT_TRUE(leader_->executors()[0]->Collect().ok());
  leader_->executors()[0]->Refuse(absl::InvalidArgumentError("slot 4: length: 7, allowed 6..6"));
  EXPECT_THAT(std::string(WaitLost().message()),
              HasSubstr("rank 0 lost: it sent what its plans do not allow: slot 4: length: 7, allowed 6..6"));
}

TEST_F(ForgedMessages, WhileTheGroupFormsLoseTheRank) {
  const std::vector<Forgery> forgeries = {
      {"ready.block_count: 0, allowed 2..16777216", [](auto& m) { m.mutable_ready()->set_block_count(0); }},
      {"ready.block_count: -1", [](auto& m) { m.mutable_ready()->set_block_count(-1); }},
      {"ready.block_count: 2147483647", [](auto& m) { m.mutable_ready()->set_block_count(INT32_MAX); }},
      {"ready.graph_count: -3",
       [](auto& m) {
         m = ReadyMessage();
         m.mutable_ready()->set_graph_count(-3);
       }},
      {"loading.total_bytes: -1", [](auto& m) { m.mutable_loading()->set_total_bytes(-1); }},
      {"loading.done_bytes: 2, allowed 0..1",
       [](auto& m) {
         m.mutable_loading()->set_done_bytes(2);
         m.mutable_loading()->set_total_bytes(1);
       }},
      {"store.key: 300, allowed 0..256 bytes",
       [](auto& m) { m.mutable_store_set()->set_key(std::string(300, 'k')); }},
      {"store_set.value bytes: 1048577",
       [](auto& m) { m.mutable_store_set()->set_value(std::string((1 << 20) + 1, 'v')); }},
      {"store.key: 300", [](auto& m) { m.mutable_store_get()->set_key(std::string(300, 'k')); }},
      {"result: one without a plan", [](auto& m) { m = ResultMessage(); }},
      {"join: a second one", [](auto& m) { m = JoinMessage(); }},
      {"a message without content", [](auto&) {}},
      {"lost: ?[error] all is well", [](auto& m) { m.set_failure("\n[error] all is well"); }},
      {"its stream ended", [](auto& m) { m.set_failure("\xff\xfe"); }},  // no UTF-8: it cannot be decoded
  };
  for (const Forgery& forgery : forgeries) {
    worker::v1::WorkerMessage message;
    forgery.forge(message);
    ExpectLost(message, forgery.says, /*ready=*/false);
  }
}

TEST_F(ForgedMessages, AReadyRankIsLikeTheOthers) {
  LeaderOptions options = TestLeaderOptions();
  options.block_count = 0;
  Open(options);
  FakeWorker first(leader_->port()), second(leader_->port());
  first.Prove(JoinMessage());
  first.Send(ReadyMessage());
  worker::v1::WorkerMessage join = JoinMessage();
  join.mutable_join()->set_rank(1);
  second.Prove(join);
  ASSERT_TRUE(WaitUntil([](const auto& views) {
    return views[0].state == WorkerState::kReady && views[1].state == WorkerState::kJoined;
  }));
  worker::v1::WorkerMessage ready = ReadyMessage();
  ready.mutable_ready()->set_block_count(kBlockCount + 1);
  second.Send(ready);
  EXPECT_THAT(
      std::string(WaitLost().message()),
      HasSubstr("rank 1 lost: it sent what its plans do not allow: ready.block_count: 101, allowed 100"));
}

// ---- before the join ----

TEST_F(ForgedMessages, AStrangerLearnsNothingAndIsLoggedOnce) {
  std::mutex mutex;
  std::vector<std::string> lines;
  InstallLogSink([&](LogLevel, std::string_view line, const LogFields&) {
    std::lock_guard<std::mutex> lock(mutex);
    lines.emplace_back(line);
  });
  const std::string right = OpeningOf(kSecret, WorkerNonce());
  const auto changed = [&](size_t at) {
    std::string text = right;
    text[at] = text[at] == '0' ? '1' : '0';
    return text;
  };
  for (const std::string& authorization :
       {std::string(), std::string(kSecret), std::string("Bearer ") + kSecret,
        OpeningOf("not-the-secret-of-the-group-012345", WorkerNonce()), right.substr(0, right.size() - 1),
        right + "0", changed(20), changed(right.size() - 1), std::string("HMAC-SHA256 "),
        "HMAC-SHA256 " + std::string(129, 'x'), std::string(4000, 'x')}) {
    FakeWorker stranger(leader_->port(), authorization);
    worker::v1::WorkerMessage join = JoinMessage();
    join.mutable_join()->set_model_hash("bbbbbbbb");
    stranger.Send(join);
    const grpc::Status status = stranger.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << authorization;
    EXPECT_THAT(status.error_message(), Not(HasSubstr("aaaaaaaa"))) << authorization;
    EXPECT_THAT(status.error_message(), Not(HasSubstr("max_batch_size"))) << authorization;
  }
  EXPECT_TRUE(leader_->health().ok());
  EXPECT_TRUE(leader_->Watch(0, milliseconds(0)).workers[0].state == WorkerState::kAbsent);
  InstallLogSink([](LogLevel, std::string_view, const LogFields&) {});
  EXPECT_THAT(lines, ElementsAre(HasSubstr("refused 1 calls of the workers' port without the group's secret, "
                                           "the last from ipv4:127.0.0.1")));
}

// An eavesdropper can replay a worker's opening, but cannot compute the proof in join.
TEST_F(ForgedMessages, AnOpeningThatIsSentAgainDoesNotJoin) {
  for (const char* const proof : {"none", "the opening's", "the leader's", "of another stream"}) {
    SCOPED_TRACE(proof);
    FakeWorker other(leader_->port());
    const worker::v1::WorkerChallenge elsewhere = other.Read().challenge();
    FakeWorker worker(leader_->port());
    const worker::v1::WorkerChallenge challenge = worker.Read().challenge();
    EXPECT_NE(challenge.nonce(), elsewhere.nonce());
    worker::v1::WorkerMessage join = JoinMessage();
    if (proof == std::string("the opening's")) {
      const std::string opening = OpeningOf(kSecret, WorkerNonce());
      join.mutable_join()->set_proof(absl::HexStringToBytes(opening.substr(opening.size() - 64)));
    } else if (proof == std::string("the leader's")) {
      join.mutable_join()->set_proof(challenge.proof());
    } else if (proof == std::string("of another stream")) {
      join.mutable_join()->set_proof(ProofOf(GroupEnd::kWorker, kSecret, WorkerNonce(), elsewhere.nonce()));
    }
    worker.Send(join);
    const grpc::Status status = worker.End();
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNAUTHENTICATED) << status.error_message();
    EXPECT_TRUE(leader_->Watch(0, milliseconds(0)).workers[0].state == WorkerState::kAbsent);
  }
  EXPECT_TRUE(leader_->health().ok());
}

TEST_F(ForgedMessages, AStreamThatDoesNotJoinEndsInTime) {
  const auto start = steady_clock::now();
  FakeWorker silent(leader_->port());
  const grpc::Status status = silent.End();
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED) << status.error_message();
  EXPECT_EQ(status.error_message(), "no join within 0.7 s");
  EXPECT_GT(steady_clock::now() - start, milliseconds(500));
  EXPECT_LT(steady_clock::now() - start, kPatience / 2);
  EXPECT_TRUE(leader_->health().ok());
}

TEST_F(ForgedMessages, AConnectionThatSaysNothingIsClosed) {
  const int peer = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(leader_->port()));
  ASSERT_EQ(connect(peer, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  const auto deadline = steady_clock::now() + kPatience;
  bool closed = false;
  while (!closed && steady_clock::now() < deadline) {
    pollfd event{.fd = peer, .events = POLLIN, .revents = 0};
    char bytes[4096];
    if (poll(&event, 1, 1000) > 0) closed = read(peer, bytes, sizeof bytes) <= 0;
  }
  EXPECT_TRUE(closed);
  close(peer);
}

TEST_F(ForgedMessages, AJoinIsSmallAndPlain) {
  worker::v1::WorkerMessage large = JoinMessage();
  large.mutable_join()->add_config_keys(std::string(1 << 16, 'k'));
  worker::v1::WorkerMessage huge = JoinMessage();
  huge.mutable_join()->add_config_keys(std::string(4 << 20, 'k'));
  worker::v1::WorkerMessage forged_line = JoinMessage();
  forged_line.mutable_join()->set_host("here\n[error] all is well");
  for (const auto& [message, code, says] :
       {std::tuple(large, grpc::StatusCode::INVALID_ARGUMENT, "join: 65"),
        std::tuple(huge, grpc::StatusCode::RESOURCE_EXHAUSTED, ""),
        std::tuple(forged_line, grpc::StatusCode::INVALID_ARGUMENT, "join.host: here?[error] all is well"),
        std::tuple(ReadyMessage(), grpc::StatusCode::INVALID_ARGUMENT,
                   "the first message of a worker must be join")}) {
    FakeWorker worker(leader_->port());
    worker.Send(message);
    const grpc::Status status = worker.End();
    EXPECT_EQ(status.error_code(), code) << status.error_message();
    EXPECT_THAT(status.error_message(), HasSubstr(says));
  }
  EXPECT_TRUE(leader_->health().ok());
}

}  // namespace
}  // namespace foredraft
