#pragma once

// A small scheduler over fake ranks, stepped by the test.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_rank.h"

namespace foredraft {

inline SchedulerOptions SmallOptions() {
  SchedulerOptions options;
  options.max_batch_size = 4;
  options.max_num_tokens = 32;
  options.max_seq_len = 96;
  options.batching_wait_iters = 3;
  options.groups[0].tokens_per_block = 4;
  options.groups[0].block_count = 129;
  options.batch_sizes = {1, 2, 4};
  return options;
}

class Stage {
 public:
  explicit Stage(const SchedulerOptions& options) : scheduler(options) { MakeRanks(); }
  ~Stage() {
    for (auto& rank : ranks_) EXPECT_THAT(rank->faults(), testing::IsEmpty());
  }

  Request MakeRequest(uint64_t id, int prompt_len, int max_tokens) {
    Request request{.id = id, .max_tokens = max_tokens};
    for (int s = 0; s < prompt_len; ++s) request.prompt_ids.push_back(static_cast<int32_t>((id + s) % 40));
    request.sampling.seed = id;
    request.arrival = now;
    return request;
  }
  void Submit(const Request& request) {
    prompts_[request.id] = request.prompt_ids;
    ASSERT_TRUE(scheduler.Submit(request).ok());
  }
  void Submit(uint64_t id, int prompt_len, int max_tokens) {
    Submit(MakeRequest(id, prompt_len, max_tokens));
  }

  // Plans and launches.
  IterationPlan Launch() {
    IterationPlan plan = scheduler.Plan(now);
    if (!IsEmpty(plan)) {
      for (auto& rank : ranks_) EXPECT_TRUE(rank->Launch(plan).ok());
      prefill_rows_.push_back(plan.prefill_rows);
    }
    return plan;
  }
  void Commit() {
    std::vector<RankResult> results;
    for (auto& rank : ranks_) {
      results.push_back(*rank->Collect());
      results.back().prefill_seconds = token_seconds * prefill_rows_.front()[results.size() - 1];
    }
    prefill_rows_.pop_front();
    scheduler.Commit(results);
    scheduler.CheckInvariants();
  }
  // One iteration without overlap.
  IterationPlan Turn() {
    IterationPlan plan = Launch();
    if (!IsEmpty(plan)) Commit();
    return plan;
  }
  void Drain() {
    while (scheduler.HasWork()) ASSERT_FALSE(IsEmpty(Turn()));
  }

  // All plans in flight are void and the ranks are empty, as after a restart.
  void LoseRanks() {
    scheduler.LoseRanks(absl::UnavailableError("rank 0 lost"));
    scheduler.CheckInvariants();
    MakeRanks();
  }

  Scheduler scheduler;
  SteadyTime now;
  double token_seconds = 0;  // what a prompt token takes

 private:
  void MakeRanks() {
    ranks_.clear();
    prefill_rows_.clear();
    for (int rank = 0; rank < scheduler.options().rank_count; ++rank) {
      ranks_.push_back(std::make_unique<FakeRank>(
          FakeRankOptions{.rank = rank, .scheduler = scheduler.options()},
          [this](uint64_t seed) -> const std::vector<int32_t>& { return prompts_.at(seed); }));
    }
  }

  std::map<uint64_t, std::vector<int32_t>> prompts_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
  std::deque<std::vector<int32_t>> prefill_rows_;  // of the plans in flight, by rank
};

inline std::vector<uint64_t> AdmittedSeeds(const IterationPlan& plan, int rank = 0) {
  std::vector<uint64_t> seeds;
  for (const SlotAdmission& admission : plan.ranks[rank].admissions) seeds.push_back(admission.sampling.seed);
  return seeds;
}

}  // namespace foredraft
