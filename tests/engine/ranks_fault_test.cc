// When a rank is lost during a step, the step fails on all other ranks within its deadline, without a crash
// and without tokens, and so does every later step (docs/invariants.md, group-over).

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <numeric>

#include "engine/local_executor.h"
#include "scheduler/serving_loop.h"
#include "tests/engine/comm/rank_threads.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr int kRanks = 2;
constexpr std::chrono::seconds kDeadline{2};
constexpr std::chrono::seconds kPatience{120};
constexpr std::chrono::seconds kSlack{20};  // added to bounds for a busy machine

class RanksFault : public ::testing::Test {
 protected:
  std::vector<std::unique_ptr<RankEngine>> Engines(std::chrono::seconds step_timeout) {
    EngineOptions options = EngineOptionsOf(model_, setting_);
    options.step_timeout = step_timeout;
    return CreateEngines(model_, options);
  }

  // Rank 0 gets a request; rank 1 has none and runs the same collectives.
  static IterationPlan Start(const Request& request) {
    IterationPlan plan = Step();
    const int prompt_len = static_cast<int>(request.prompt_ids.size());
    plan.ranks[0].admissions.push_back({.slot = 0,
                                        .sampling = request.sampling,
                                        .draft_cap = 1,
                                        .prompt_len = prompt_len,
                                        .length_limit = prompt_len + 40});
    std::vector<int32_t> blocks(8);
    std::iota(blocks.begin(), blocks.end(), 1);
    plan.ranks[0].block_table_deltas.push_back({.slot = 0, .first_index = 0, .block_ids = blocks});
    plan.ranks[0].prefill_chunks.push_back(
        {.slot = 0, .first_position = 0, .token_ids = request.prompt_ids, .last = true});
    plan.prefill_rows = {prompt_len, 0};
    plan.ended_prompts = {1, 0};
    return plan;
  }

  static IterationPlan Step() {
    IterationPlan plan;
    plan.draft_len = 1;
    plan.decode_bucket = 1;
    plan.prefill_rows = {0, 0};
    plan.ended_prompts = {0, 0};
    plan.ranks.resize(kRanks);
    plan.ranks[0].live_slots = {0};
    return plan;
  }

  const Setting setting_ = {.ranks = kRanks, .draft_len = 1, .max_draft_len = 1, .max_batch_size = 2};
  const LoadedModel& model_ = LoadModelOnce(kAbacusDir);
  const Request request_ = TestRequests({})[1];
};

TEST_F(RanksFault, AStepThatAPeerDoesNotRunFailsAndSoDoAllLaterOnes) {
  const auto engines = Engines(kDeadline);
  ForEachRank(kRanks, [&](int rank) { ASSERT_TRUE(engines[rank]->Run(Start(request_), rank).ok()); });
  ForEachRank(kRanks, [&](int rank) { ASSERT_TRUE(engines[rank]->Run(Step(), rank).ok()); });
  const auto start = Clock::now();
  const absl::Status lost = engines[0]->Run(Step(), 0).status();
  EXPECT_LT(Clock::now() - start, kDeadline + kSlack);
  EXPECT_EQ(lost.code(), absl::StatusCode::kUnavailable) << lost;
  EXPECT_THAT(lost.message(), HasSubstr("rank 0: all_gather: nothing from rank 1 within 2000 ms"));
  for (const IterationPlan& plan : {Step(), Start(request_)}) {
    const auto again = Clock::now();
    EXPECT_EQ(engines[0]->Run(plan, 0).status(), lost);
    EXPECT_LT(Clock::now() - again, kDeadline);
  }
  // The late rank finds the connection closed.
  EXPECT_EQ(engines[1]->Run(Step(), 1).status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(RanksFault, AbortEndsAWaitingStep) {
  const auto engines = Engines(kPatience);
  ForEachRank(kRanks, [&](int rank) { ASSERT_TRUE(engines[rank]->Run(Start(request_), rank).ok()); });
  auto step = std::async(std::launch::async, [&] { return engines[0]->Run(Step(), 0).status(); });
  const auto start = Clock::now();
  engines[0]->rank().comm->Abort(absl::UnavailableError("the leader is gone"));
  const absl::Status status = step.get();
  EXPECT_LT(Clock::now() - start, kSlack);
  EXPECT_EQ(status, absl::UnavailableError("the leader is gone"));
}

TEST_F(RanksFault, TheServingLoopEndsAllRequestsWhenARankIsLost) {
  auto engines = Engines(kPatience);
  Communicator& lost = *engines[1]->rank().comm;
  std::vector<std::unique_ptr<LocalExecutor>> executors;
  std::vector<Executor*> pointers;
  const EngineOptions options = engines[0]->options();
  for (int rank = 0; rank < kRanks; ++rank) {
    executors.push_back(std::make_unique<LocalExecutor>(std::move(engines[rank])));
    pointers.push_back(executors.back().get());
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<FinishReason> finishes(4, FinishReason::kNone);
  std::vector<size_t> token_counts(4);
  const auto all = [&](const auto& holds) {
    std::unique_lock<std::mutex> lock(mutex);
    return changed.wait_for(lock, kPatience, [&] { return holds(); });
  };
  ServingLoop loop(
      {}, std::make_unique<Scheduler>(SchedulerOptionsOf(model_, options, setting_)), pointers,
      [&](const std::vector<RequestUpdate>& updates) {
        std::lock_guard<std::mutex> lock(mutex);
        for (const RequestUpdate& update : updates) {
          token_counts[update.request_id] += update.token_ids.size();
          finishes[update.request_id] = update.finish;
        }
        changed.notify_all();
      },
      nullptr);
  loop.Start();
  for (int i = 0; i < 4; ++i) {
    Request request = request_;
    request.id = i;
    request.sampling.seed = i + 1;
    request.max_tokens = 250;
    request.stop_ids.clear();
    request.arrival = Clock::now();
    ASSERT_TRUE(loop.Submit(std::move(request)).ok());
  }
  ASSERT_TRUE(all([&] { return std::count(token_counts.begin(), token_counts.end(), 0u) == 0; }));
  const auto start = Clock::now();
  lost.Abort(absl::UnavailableError("killed"));
  ASSERT_TRUE(all([&] { return std::count(finishes.begin(), finishes.end(), FinishReason::kNone) == 0; }));
  EXPECT_LT(Clock::now() - start, kSlack);
  EXPECT_EQ(finishes, std::vector<FinishReason>(4, FinishReason::kError));
  EXPECT_EQ(loop.health().code(), absl::StatusCode::kUnavailable);
  loop.Stop();
}

}  // namespace
}  // namespace foredraft
