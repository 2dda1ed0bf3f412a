// The load generator against a whole frontend on a scripted rank.

#include "client/load/load_run.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "client/load/comparison.h"
#include "client/load/random_bits.h"
#include "client/load/run_stats.h"
#include "tests/server/serving_fixture.h"

namespace foredraft {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::atomic<bool> kNotInterrupted = false;

class LoadRunTest : public testing::Test {
 protected:
  void Start(const TestServerOptions& options = {}, int connections = 1) {
    server_ = std::make_unique<TestServer>(options);
    absl::StatusOr<std::unique_ptr<BenchClient>> client =
        BenchClient::Connect({.address = server_->address()}, connections);
    ASSERT_TRUE(client.ok()) << client.status();
    client_ = *std::move(client);
    absl::StatusOr<std::unique_ptr<RandomWorkload>> workload =
        RandomWorkload::Make({.input_len = 12, .output_len = 20}, client_->model());
    ASSERT_TRUE(workload.ok()) << workload.status();
    workload_ = *std::move(workload);
  }

  LoadResult Run(
      const LoadOptions& options, const std::atomic<bool>& interrupted = kNotInterrupted,
      const std::function<void(const LoadProgress&)>& progress = [](const LoadProgress&) {}) {
    return LoadRun(*client_, *workload_, options).Run(interrupted, progress);
  }

  static LoadOptions Load(int concurrency, std::optional<int64_t> request_count) {
    LoadOptions load{.concurrency = concurrency, .request_count = request_count};
    load.request.set_ignore_eos(true);
    return load;
  }

  std::unique_ptr<TestServer> server_;
  std::unique_ptr<BenchClient> client_;
  std::unique_ptr<Workload> workload_;
};

TEST_F(LoadRunTest, CountsEveryRequestOfAClosedLoop) {
  Start();
  const LoadResult result = Run(Load(4, 60));
  std::set<int64_t> indexes;
  for (const MeasuredRequest& request : result.requests) {
    indexes.insert(request.index);
    EXPECT_TRUE(request.status.ok()) << request.status;
    EXPECT_EQ(request.output_tokens, 20);
    EXPECT_LE(request.due_s, request.sent_s);
    EXPECT_LT(request.sent_s, request.first_token_s);
    EXPECT_LE(request.first_token_s, request.last_token_s);
    EXPECT_LE(request.last_token_s, result.wall_s);
  }
  EXPECT_EQ(result.requests.size(), 60u);
  EXPECT_EQ(indexes.size(), 60u);
  const RunStats stats = Evaluate(result);
  EXPECT_EQ(stats.completed, 60);
  EXPECT_EQ(stats.input_tokens, 60 * 12);
  EXPECT_EQ(stats.output_tokens, 60 * 20);
  EXPECT_EQ(stats.tpot_ms.count, 60);
  // The scripted rank accepts drafts, and the accounting adds up over the whole run.
  const SpeculationStats& speculation = stats.speculation;
  EXPECT_GT(speculation.accepted_tokens, 0);
  EXPECT_EQ(stats.output_tokens, 60 + speculation.steps + speculation.accepted_tokens);
  EXPECT_EQ(server_->Metric("generation_tokens_total"), 60 * 20);
  EXPECT_TRUE(server_->Eventually([this] { return server_->IsIdle(); }));
}

// Chats of SPEED-Bench's form: as many turns as their place in the list says.
class Chats : public Workload {
 public:
  explicit Chats(std::vector<int> turn_counts) : turn_counts_(std::move(turn_counts)) {}

  WorkItem Item(int64_t index) const override {
    WorkItem item{.category = index % 2 == 0 ? "coding" : "math", .output_tokens = 20};
    for (int turn = 0; turn < turn_counts_[index]; ++turn) {
      item.turns.push_back("question " + std::to_string(index) + "." + std::to_string(turn));
    }
    return item;
  }
  std::string Description() const override { return "chats"; }

 private:
  const std::vector<int> turn_counts_;
};

// Of a chat: tokens of its prompt, by the server.
int64_t PromptTokens(v1::GenerationService::Stub& stub, const v1::Chat& chat) {
  v1::TokenizeRequest request;
  *request.mutable_chat() = chat;
  v1::TokenizeResponse response;
  grpc::ClientContext context;
  const grpc::Status status = stub.Tokenize(&context, request, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.token_ids_size();
}

TEST_F(LoadRunTest, SendsEachTurnOfAChatBehindTheAnswerToTheOneBefore) {
  Start();
  workload_ = std::make_unique<Chats>(std::vector<int>{3, 1, 2});
  LoadOptions load = Load(2, 3);
  load.seed = 11;
  load.request.set_ignore_eos(false);
  int64_t most_done = 0;
  LoadResult result = Run(load, kNotInterrupted, [&](const LoadProgress& progress) {
    EXPECT_LE(progress.running, 2);
    most_done = std::max(most_done, progress.done);
  });
  EXPECT_LE(most_done, 3);  // chats, not turns
  std::sort(result.requests.begin(), result.requests.end(), [](const auto& a, const auto& b) {
    return std::pair(a.index, a.turn) < std::pair(b.index, b.turn);
  });
  ASSERT_EQ(result.requests.size(), 6u);
  // What the chat of index 0 should be, with the answers that the scripted rank gives to the seeds of its
  // turns.
  v1::Chat chat;
  for (int turn = 0; turn < 3; ++turn) {
    const MeasuredRequest& request = result.requests[turn];
    EXPECT_TRUE(request.status.ok()) << request.status;
    EXPECT_EQ(request.index, 0);
    EXPECT_EQ(request.turn, turn);
    EXPECT_EQ(request.category, "coding");
    if (turn > 0) {
      EXPECT_GE(request.due_s, result.requests[turn - 1].last_token_s);
      EXPECT_GE(request.sent_s, request.due_s);
    }
    v1::ChatMessage& question = *chat.add_messages();
    question.set_role("user");
    question.set_content("question 0." + std::to_string(turn));
    EXPECT_EQ(request.usage.prompt_tokens(), PromptTokens(server_->stub(), chat)) << turn;
    const uint64_t seed = turn == 0 ? RandomBits(11, 0) : RandomBits(RandomBits(11, 0), turn);
    v1::GenerateRequest again = load.request;
    *again.mutable_chat() = chat;
    again.set_max_tokens(20);
    again.mutable_sampling()->set_seed(seed);
    v1::GenerateResponse answer;
    grpc::ClientContext context;
    ASSERT_TRUE(server_->stub().Generate(&context, again, &answer).ok());
    v1::ChatMessage& message = *chat.add_messages();
    message.set_role("assistant");
    message.set_content(answer.text().empty() ? " " : answer.text());
  }
  EXPECT_EQ(result.requests[3].index, 1);
  EXPECT_EQ(result.requests[5].turn, 1);
  EXPECT_TRUE(server_->Eventually([this] { return server_->IsIdle(); }));
}

TEST_F(LoadRunTest, EndsAChatBehindATurnThatFails) {
  Start();
  workload_ = std::make_unique<Chats>(std::vector<int>{2, 2});
  LoadOptions load = Load(1, 2);
  load.request.set_ignore_eos(false);
  load.request.mutable_sampling()->set_top_p(7);
  const LoadResult result = Run(load);
  ASSERT_EQ(result.requests.size(), 2u);
  for (const MeasuredRequest& request : result.requests) EXPECT_EQ(request.turn, 0);
  EXPECT_EQ(Evaluate(result).failed, 2);
}

TEST_F(LoadRunTest, NeverHasMoreInFlightThanTheConcurrency) {
  Start();
  const LoadResult result = Run(Load(3, 40));
  ASSERT_EQ(result.requests.size(), 40u);
  for (const MeasuredRequest& one : result.requests) {
    const auto in_flight =
        std::count_if(result.requests.begin(), result.requests.end(), [&one](const MeasuredRequest& other) {
          return other.sent_s <= one.sent_s && one.sent_s < other.last_token_s;
        });
    EXPECT_LE(in_flight, 3);
  }
}

TEST_F(LoadRunTest, SendsAnOpenLoopAtItsArrivalTimesHoweverSlowTheServer) {
  Start();
  server_->rank().Hold();
  std::atomic<bool> interrupted = false;
  LoadOptions load = Load(0, 30);
  load.request_rate_per_s = 1000;
  load.seed = 5;
  // All are sent before the first answer; then the rank goes on and all complete.
  const LoadResult result = Run(load, interrupted, [this](const LoadProgress& progress) {
    if (progress.running == 30) server_->rank().Release();
  });
  EXPECT_EQ(Evaluate(result).completed, 30);
  Arrivals arrivals(1000, 5);
  std::vector<MeasuredRequest> requests = result.requests;
  std::sort(requests.begin(), requests.end(),
            [](const MeasuredRequest& a, const MeasuredRequest& b) { return a.index < b.index; });
  for (const MeasuredRequest& request : requests) {
    EXPECT_EQ(request.due_s, arrivals.next_s());
    EXPECT_GE(request.sent_s, request.due_s);
    arrivals.Advance();
  }
}

TEST_F(LoadRunTest, LimitsAnOpenLoopToItsConcurrency) {
  Start();
  server_->rank().Hold();
  LoadOptions load = Load(2, 10);
  load.request_rate_per_s = 10'000;
  int ticks_at_two = 0;
  const LoadResult result = Run(load, kNotInterrupted, [&](const LoadProgress& progress) {
    EXPECT_LE(progress.running, 2);
    if (progress.running == 2 && ++ticks_at_two == 2) server_->rank().Release();
  });
  const RunStats stats = Evaluate(result);
  EXPECT_EQ(stats.completed, 10);
  // A request that the concurrency delays is due when another one ends.
  double first_end_s = result.wall_s;
  for (const MeasuredRequest& request : result.requests) {
    first_end_s = std::min(first_end_s, request.last_token_s);
  }
  for (const MeasuredRequest& request : result.requests) {
    if (request.index < 2) continue;
    EXPECT_GE(request.due_s, first_end_s) << request.index;
  }
}

TEST_F(LoadRunTest, CountsRefusalsByStatusAndGoesOn) {
  TestServerOptions options;
  options.loop.max_queue_size = 2;
  Start(options);
  server_->rank().Hold();
  LoadOptions load = Load(30, 30);
  const LoadResult result = Run(load, kNotInterrupted, [this](const LoadProgress& progress) {
    // At most 8 slots and a queue of 2 are taken; the rest has been refused.
    if (progress.done + progress.running == 30 && progress.failed >= 20) server_->rank().Release();
  });
  const RunStats stats = Evaluate(result);
  EXPECT_EQ(stats.sent, 30);
  EXPECT_EQ(stats.completed + stats.failed, 30);
  EXPECT_GT(stats.completed, 0);
  ASSERT_EQ(stats.errors.size(), 1u);
  EXPECT_EQ(stats.errors[0].code, absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(stats.errors[0].count, stats.failed);
  EXPECT_TRUE(server_->Eventually([this] { return server_->IsIdle(); }));
}

TEST_F(LoadRunTest, EndsByItsDuration) {
  Start();
  LoadOptions load = Load(4, std::nullopt);
  load.duration_s = 0.2;
  const LoadResult result = Run(load);
  EXPECT_FALSE(result.interrupted);
  EXPECT_GT(Evaluate(result).completed, 0);
  EXPECT_EQ(Evaluate(result).failed, 0);
  for (const MeasuredRequest& request : result.requests) EXPECT_LT(request.due_s, 0.2);
}

TEST_F(LoadRunTest, LeavesNothingBehindWhenInterrupted) {
  Start();
  server_->rank().Hold();
  std::atomic<bool> interrupted = false;
  const LoadResult result = Run(Load(12, 100), interrupted, [&interrupted](const LoadProgress& progress) {
    if (progress.running == 12) interrupted.store(true);
  });
  EXPECT_TRUE(result.interrupted);
  const RunStats stats = Evaluate(result);
  EXPECT_EQ(stats.sent, 12);
  EXPECT_EQ(stats.interrupted_requests, 12);
  EXPECT_EQ(stats.failed, 0);
  server_->rank().Release();
  EXPECT_TRUE(server_->Eventually([this] { return server_->IsIdle(); }));
  // A request that was cancelled before it arrived is not counted by the server.
  EXPECT_LE(server_->Metric("requests_total", {{"outcome", "cancelled"}}), 12);
  EXPECT_EQ(server_->Metric("requests_total", {{"outcome", "error"}}), 0);
}

TEST_F(LoadRunTest, GivesUpWhenTheServerIsGone) {
  Start();
  server_->rank().Lose();
  LoadOptions load = Load(4, std::nullopt);
  load.duration_s = 3600;
  const LoadResult result = Run(load);
  EXPECT_THAT(result.gave_up, HasSubstr("UNAVAILABLE"));
  EXPECT_EQ(Evaluate(result).completed, 0);
  EXPECT_GE(Evaluate(result).failed, 100);
}

TEST_F(LoadRunTest, EndsRequestsByTheirTimeout) {
  Start();
  server_->rank().Hold();
  LoadOptions load = Load(3, 3);
  load.request.set_timeout_s(0.05);
  const LoadResult result =
      Run(load, kNotInterrupted, [this](const LoadProgress&) { server_->rank().Release(); });
  const RunStats stats = Evaluate(result);
  ASSERT_EQ(stats.errors.size(), 1u);
  EXPECT_EQ(stats.errors[0].code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(stats.errors[0].count, 3);
}

TEST_F(LoadRunTest, CarriesHundredsOfStreamsOverSeveralConnections) {
  TestServerOptions options;
  options.loop.max_queue_size = 1000;
  Start(options, /*connections=*/3);
  EXPECT_EQ(client_->connections(), 3);
  EXPECT_EQ(Evaluate(Run(Load(256, 600))).completed, 600);
}

// One run per setting and round: 20 requests, on another server for the baseline.
class ComparisonRunTest : public LoadRunTest {
 protected:
  void StartBaseline() {
    TestServerOptions options;  // as a daemon without speculative_config
    options.scheduler.max_draft_len = options.scheduler.draft_len = 0;
    options.scheduler.drafter = {};
    options.rank.max_draft_len = 0;
    baseline_server_ = std::make_unique<TestServer>(options);
    absl::StatusOr<std::unique_ptr<BenchClient>> client =
        BenchClient::Connect({.address = baseline_server_->address()}, 1);
    ASSERT_TRUE(client.ok()) << client.status();
    baseline_ = *std::move(client);
  }

  Comparison CompareOver(const std::vector<ComparisonSetting>& settings, bool same_seed = true) {
    int run = 0;
    return Compare(settings, 2, [&](const ComparisonSetting& setting, const std::string&) {
      LoadOptions load = Load(4, 20);
      load.seed = same_seed ? 9 : ++run;  // the scripted rank's tokens follow the seed
      if (setting.max_draft_tokens) load.request.set_max_draft_tokens(*setting.max_draft_tokens);
      BenchClient& client = setting.on_baseline ? *baseline_ : *client_;
      return LoadRun(client, *workload_, load).Run(kNotInterrupted, [](const LoadProgress&) {});
    });
  }

  std::unique_ptr<TestServer> baseline_server_;
  std::unique_ptr<BenchClient> baseline_;
};

TEST_F(ComparisonRunTest, GetsTheSameTokensWithAnyDraftsAndFromTheBaseline) {
  Start();
  StartBaseline();
  const Comparison comparison =
      CompareOver({ComparisonSetting::Baseline(), ComparisonSetting::OfDraftLen(0),
                   ComparisonSetting::OfDraftLen(1), ComparisonSetting::OfDraftLen(3)});
  EXPECT_EQ(comparison.tokens.compared(), 20);
  EXPECT_EQ(comparison.tokens.agreed(), 20);
  // 40 requests per setting: the baseline's went to the baseline, the others' did not.
  EXPECT_EQ(baseline_server_->Metric("generation_tokens_total"), 40 * 20);
  EXPECT_EQ(server_->Metric("generation_tokens_total"), 3 * 40 * 20);
  const auto speculation = [&](size_t setting) -> const SpeculationStats& {
    return comparison.rounds[0][setting].speculation;
  };
  EXPECT_EQ(speculation(0).draft_tokens, 0);
  EXPECT_EQ(speculation(1).draft_tokens, 0);
  EXPECT_GT(speculation(3).acceptance_length(), speculation(2).acceptance_length());
}

TEST_F(ComparisonRunTest, ReportsDifferentTokens) {
  Start();
  const Comparison comparison =
      CompareOver({ComparisonSetting::OfDraftLen(0), ComparisonSetting::OfDraftLen(1)}, /*same_seed=*/false);
  EXPECT_EQ(comparison.tokens.agreed(), 0);
  EXPECT_TRUE(comparison.Broken());
}

TEST(BenchClient, NamesTheMissingServer) {
  std::string address;
  {
    TestServer gone;
    address = gone.address();
  }
  const auto client = BenchClient::Connect({.address = address}, 1);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(client.status().message()), StartsWith(address + ": UNAVAILABLE nobody answers"));
}

TEST(BenchClient, SaysThatTheServerIsLoading) {
  TestServerOptions options;
  options.serve = false;
  TestServer server(options);
  EXPECT_EQ(BenchClient::Connect({.address = server.address()}, 1).status().message(),
            server.address() + ": UNAVAILABLE loading: the model is not ready yet");
}

TEST(BenchClient, NamesATlsFileThatCannotBeRead) {
  EXPECT_EQ(BenchClient::Connect({.tls_ca = "/nonexistent.pem"}, 1).status(),
            absl::NotFoundError("/nonexistent.pem: cannot be read"));
}

}  // namespace
}  // namespace foredraft
