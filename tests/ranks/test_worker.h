#pragma once

// Workers of a LeaderFixture without a model: the executor of each answers a plan with tokens that follow
// from the plan's number.

#include <gmock/gmock.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <future>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/bounded_queue.h"
#include "ranks/worker_session.h"
#include "tests/ranks/leader_fixture.h"

namespace foredraft {

// What a worker does otherwise, by a plan's number; 0: never.
struct WorkerScript {
  uint64_t fail_at = 0;
  uint64_t hang_at = 0;
  uint64_t forge_at = 0;  // a token of its own
  int attention_tp = 1;   // as LeaderOptions'
};

class ScriptedExecutor : public Executor {
 public:
  absl::Status Launch(const IterationPlan& plan) override {
    if (plan.number == script.fail_at) return absl::InternalError("out of tokens");
    RankResult result{.number = plan.number};
    for (int32_t slot : plan.ranks[group].live_slots) {
      const int32_t number = static_cast<int32_t>(plan.number);
      SlotResult& of_slot = result.slots.emplace_back(SlotResult{.slot = slot, .length = number + 1});
      of_slot.first_token = number == 1;
      of_slot.token_ids.assign(of_slot.first_token ? 2 : 1, number * 100 + slot);
      if (plan.number == script.forge_at) ++of_slot.token_ids.back();
    }
    if (plan.number == script.hang_at) return absl::OkStatus();
    results_.TryPush(std::move(result));  // refused once aborted
    return absl::OkStatus();
  }
  absl::StatusOr<RankResult> Collect() override {
    std::optional<RankResult> result = results_.Pop(kPatience);
    if (!result) return absl::DeadlineExceededError("aborted");
    return *std::move(result);
  }
  void Abort() { results_.Close(); }

  int group = 0;  // the rank's place in plans
  WorkerScript script;

 private:
  BoundedQueue<RankResult> results_{4};
};

// One worker on a thread of its own, which does what a worker process does.
class TestWorker {
 public:
  TestWorker(int port, int rank, const WorkerScript& script = {},
             std::chrono::milliseconds heartbeat_timeout = kHeartbeatTimeout) {
    executor_.group = rank / script.attention_tp;
    executor_.script = script;
    end_ = std::async(std::launch::async, [=, this]() -> absl::Status {
      WorkerOptions options = Options(port, rank);
      options.heartbeat_timeout = heartbeat_timeout;
      auto session = WorkerSession::Join(options);
      if (!session.ok()) return session.status();
      (*session)->SetOnLost([this](const absl::Status&) { executor_.Abort(); });
      if (absl::Status status =
              (*session)->Set("address/" + std::to_string(rank), "at " + std::to_string(rank));
          !status.ok())
        return status;
      absl::StatusOr<std::string> peer = (*session)->Get("address/" + std::to_string(rank ^ 1),
                                                         std::chrono::steady_clock::now() + kPatience);
      if (!peer.ok()) return peer.status();
      EXPECT_EQ(*peer, "at " + std::to_string(rank ^ 1));
      (*session)->ReportLoading(5, 10);
      (*session)->ReportReady(kBlockCount, 7);
      return (*session)->Run(executor_, executor_.group, TestLimits(2 / executor_.script.attention_tp));
    });
  }
  static WorkerOptions Options(int port, int rank) {
    WorkerOptions options;
    options.rank = rank;
    options.leader = "127.0.0.1:" + std::to_string(port);
    options.credentials = grpc::InsecureChannelCredentials();
    options.secret = kSecret;
    options.identity = Identity();
    options.identity.numerics_class = "cccccccc";
    options.device = "scripted";
    options.heartbeat_timeout = kHeartbeatTimeout;
    options.join_timeout = kPatience;
    return options;
  }
  absl::Status End() {
    EXPECT_EQ(end_.wait_for(kPatience), std::future_status::ready);
    return end_.get();
  }

 private:
  ScriptedExecutor executor_;
  std::future<absl::Status> end_;
};

// Two ranks, whose plans have one sequence and two.
class GroupFixture : public LeaderFixture {
 protected:
  // The first plan of a life admits and prefills, the others decode.
  static IterationPlan PlanOf(uint64_t number) {
    IterationPlan plan{.number = number, .decode_bucket = 2, .prefill_rows = {0, 0}, .ended_prompts = {0, 0}};
    if (number == 1) plan.prefill_rows = plan.ended_prompts = {1, 2};
    plan.ranks.resize(2);
    plan.ranks[0].live_slots = {1};
    plan.ranks[1].live_slots = {2, 3};
    for (RankPlan& rank : plan.ranks) {
      for (const int32_t slot : rank.live_slots) {
        if (number > 1) continue;
        rank.admissions.push_back({.slot = slot, .prompt_len = 1, .length_limit = 1000});
        rank.prefill_chunks.push_back({.slot = slot, .token_ids = {9}, .last = true});
      }
    }
    return plan;
  }
  void Launch(uint64_t number) {
    for (Executor* executor : leader_->executors()) ASSERT_TRUE(executor->Launch(PlanOf(number)).ok());
  }
  void ExpectResults(uint64_t number) {
    const int32_t base = static_cast<int32_t>(number) * 100;
    std::vector<std::vector<int32_t>> tokens;
    for (Executor* executor : leader_->executors()) {
      absl::StatusOr<RankResult> result = executor->Collect();
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->number, number);
      tokens.emplace_back();
      for (const SlotResult& slot : result->slots) tokens.back().push_back(slot.token_ids[0]);
    }
    EXPECT_THAT(tokens, testing::ElementsAre(testing::ElementsAre(base + 1),
                                             testing::ElementsAre(base + 2, base + 3)));
  }
};

}  // namespace foredraft
