// The executors of a tensor group as one: the first rank's result, with the slowest times, unless a rank
// fails or gives another result.

#include "ranks/tensor_group_executor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>

namespace foredraft {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Gives the results that it is told.
class ToldExecutor : public Executor {
 public:
  absl::Status Launch(const IterationPlan& plan) override {
    launched.push_back(plan.number);
    return launch_status;
  }
  absl::StatusOr<RankResult> Collect() override {
    if (results.empty()) return absl::InternalError("asked for a result that is not there");
    absl::StatusOr<RankResult> result = results.front();
    results.pop_front();
    return result;
  }
  void Refuse(const absl::Status& why) override { refused.push_back(std::string(why.message())); }

  absl::Status launch_status;
  std::deque<absl::StatusOr<RankResult>> results;
  std::vector<uint64_t> launched;
  std::vector<std::string> refused;
};

RankResult ResultOf(uint64_t number, double seconds) {
  RankResult result = {.number = number, .prefill_seconds = seconds, .decode_seconds = 2 * seconds};
  result.slots.push_back({.slot = 3,
                          .token_ids = {5, 6},
                          .length = 9,
                          .logprobs = {{.token_id = 5, .logprob = -1.5f}, {.token_id = 6, .logprob = -0.25f}},
                          .drafts = {7, 8}});
  return result;
}

class TensorGroupExecutorTest : public ::testing::Test {
 protected:
  void Give(uint64_t number) {
    for (size_t i = 0; i < ranks_.size(); ++i) {
      ranks_[i].results.push_back(ResultOf(number, static_cast<double>(i == 1 ? 7 : i)));
    }
  }

  std::array<ToldExecutor, 4> ranks_;
  int disagreements_ = 0;
  TensorGroupExecutor group_{
      8, {&ranks_[0], &ranks_[1], &ranks_[2], &ranks_[3]}, [this] { ++disagreements_; }};
};

TEST_F(TensorGroupExecutorTest, AllGetThePlanAndTheSlowestIsTimed) {
  ASSERT_TRUE(group_.Launch({.number = 4}).ok());
  for (const ToldExecutor& rank : ranks_) EXPECT_THAT(rank.launched, ElementsAre(4));
  Give(4);
  const auto result = group_.Collect();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->prefill_seconds, 7);
  EXPECT_EQ(result->decode_seconds, 14);
  EXPECT_THAT(result->slots[0].token_ids, ElementsAre(5, 6));
  EXPECT_EQ(disagreements_, 0);
}

TEST_F(TensorGroupExecutorTest, AResultThatDiffersInAnythingLosesItsRank) {
  const std::vector<void (*)(RankResult&)> lies = {
      [](RankResult& r) { r.slots[0].token_ids[1] = 8; },
      [](RankResult& r) { r.slots[0].logprobs[0].logprob = -1.5000001f; },
      [](RankResult& r) { r.slots[0].drafts.pop_back(); },
      [](RankResult& r) { r.slots[0].finished = true; },
      [](RankResult& r) { r.slots[0].length = 10; },
      [](RankResult& r) { r.slots.clear(); },
      [](RankResult& r) { r.number = 5; },
  };
  for (const auto lie : lies) {
    Give(4);
    lie(*ranks_[2].results.front());
    const auto result = group_.Collect();
    EXPECT_EQ(result.status(),
              absl::UnavailableError("rank 10 lost: its result of iteration 4 differs from rank 8's"));
    EXPECT_THAT(ranks_[2].refused, ElementsAre("its result of iteration 4 differs from rank 8's"));
    EXPECT_THAT(ranks_[1].refused, IsEmpty());
    EXPECT_EQ(group_.Collect().status(), result.status()) << "no later result is delivered";
    for (ToldExecutor& rank : ranks_) rank.results.clear(), rank.refused.clear();
    group_.Restart();
  }
  EXPECT_EQ(disagreements_, static_cast<int>(lies.size()));
}

TEST_F(TensorGroupExecutorTest, WhatTheFirstRankGaveIsDeliveredWhereAnotherIsLost) {
  const absl::Status lost = absl::UnavailableError("rank 11 lost: its stream ended");
  Give(4);
  ranks_[3].results.front() = lost;
  const auto result = group_.Collect();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->number, 4u);
  Give(5);
  EXPECT_EQ(group_.Collect().status(), lost);
  group_.Restart();
  for (ToldExecutor& rank : ranks_) rank.results.clear();
  Give(6);
  EXPECT_TRUE(group_.Collect().ok()) << "another life";
}

TEST_F(TensorGroupExecutorTest, WithoutTheFirstRankThereIsNoResult) {
  const absl::Status lost = absl::UnavailableError("rank 8 lost: its stream ended");
  Give(4);
  ranks_[0].results.front() = lost;
  EXPECT_EQ(group_.Collect().status(), lost);
  ranks_[1].launch_status = lost;
  EXPECT_EQ(group_.Launch({.number = 5}), lost);
}

TEST_F(TensorGroupExecutorTest, WhatTheSchedulerRefusesIsTheFirstRanks) {
  group_.Refuse(absl::InvalidArgumentError("length"));
  EXPECT_THAT(ranks_[0].refused, ElementsAre("length"));
}

}  // namespace
}  // namespace foredraft
