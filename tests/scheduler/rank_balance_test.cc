// Placement of requests on eight ranks, without a model. All ranks step together, so an iteration costs as
// much as its fullest rank, and the rows that other ranks leave free are wasted. The baseline is round robin:
// the same workload with one scheduler per rank instead of one scheduler for the group.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "scheduler/scheduler.h"
#include "tests/scheduler/fake_rank.h"

namespace foredraft {
namespace {

constexpr int kRanks = 8;

struct Skew {
  const char* name;
  int slots;
  double short_share;  // of requests with few tokens
  int short_tokens, long_tokens;
  int short_prompt, long_prompt;
  double arrivals;  // requests per iteration
};

struct Arrival {
  int turn = 0;
  Request request;
};

// Exponential arrivals; lengths uniform up to one of two bounds.
std::vector<Arrival> WorkloadOf(const Skew& skew, uint64_t seed, int count) {
  std::mt19937_64 random(seed);
  const auto draw = [&random](int most) { return std::uniform_int_distribution<int>(1, most)(random); };
  std::vector<Arrival> workload;
  double turn = 0;
  for (int i = 0; i < count; ++i) {
    turn += std::exponential_distribution<double>(skew.arrivals)(random);
    const bool is_short = std::uniform_real_distribution<double>(0, 1)(random) < skew.short_share;
    Arrival arrival{.turn = static_cast<int>(turn)};
    arrival.request.id = i + 1;
    arrival.request.sampling.seed = i + 1;
    arrival.request.max_tokens = draw(is_short ? skew.short_tokens : skew.long_tokens);
    const int prompt_len = draw(is_short ? skew.short_prompt : skew.long_prompt);
    for (int s = 0; s < prompt_len; ++s) arrival.request.prompt_ids.push_back(draw(1000));
    workload.push_back(std::move(arrival));
  }
  return workload;
}

// How unevenly the rows of decode steps, or of prefill forwards, lie on the ranks.
struct Waste {
  int64_t rows = 0;
  int64_t capacity = 0;  // ranks x the fullest rank's rows

  void Add(const std::vector<int>& rank_rows) {
    rows += std::accumulate(rank_rows.begin(), rank_rows.end(), int64_t{0});
    capacity += kRanks * int64_t{*std::max_element(rank_rows.begin(), rank_rows.end())};
  }
  double imbalance() const { return static_cast<double>(capacity) / static_cast<double>(rows); }
  int64_t wasted() const { return capacity - rows; }
};
struct WorkloadWaste {
  Waste decode, prefill;
};

double Saved(const Waste& before, const Waste& after) {
  return 1 - static_cast<double>(after.wasted()) / static_cast<double>(before.wasted());
}

// One scheduler and its ranks, stepped by the test.
class Group {
 public:
  Group(const SchedulerOptions& options, const std::vector<Arrival>& workload) : scheduler_(options) {
    for (int rank = 0; rank < options.rank_count; ++rank) {
      ranks_.push_back(std::make_unique<FakeRank>(FakeRankOptions{.rank = rank, .scheduler = options},
                                                  [&workload](uint64_t id) -> const std::vector<int32_t>& {
                                                    return workload[id - 1].request.prompt_ids;
                                                  }));
    }
  }
  void Submit(const Request& request) { ASSERT_TRUE(scheduler_.Submit(request).ok()); }
  bool HasWork() const { return scheduler_.HasWork(); }

  // Runs one iteration; appends the rows of each rank.
  void Turn(std::vector<int>* decode_rows, std::vector<int>* prefill_rows) {
    const IterationPlan plan = scheduler_.Plan(SteadyTime());
    if (IsEmpty(plan)) {
      decode_rows->insert(decode_rows->end(), ranks_.size(), 0);
      prefill_rows->insert(prefill_rows->end(), ranks_.size(), 0);
      return;
    }
    std::vector<RankResult> results;
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      ASSERT_TRUE(ranks_[rank]->Launch(plan).ok());
      results.push_back(*ranks_[rank]->Collect());
      decode_rows->push_back(static_cast<int>(plan.ranks[rank].live_slots.size()));
      prefill_rows->push_back(plan.prefill_rows[rank]);
    }
    scheduler_.Commit(results);
    scheduler_.TakeUpdates();
  }

 private:
  Scheduler scheduler_;
  std::vector<std::unique_ptr<FakeRank>> ranks_;
};

SchedulerOptions OptionsOf(const Skew& skew, int rank_count) {
  SchedulerOptions options;
  options.rank_count = rank_count;
  options.max_batch_size = skew.slots;
  options.max_num_tokens = 512;
  options.max_seq_len = 1024;
  options.groups[0].tokens_per_block = 16;
  options.groups[0].block_count = skew.slots * 70 + 1;
  options.batch_sizes = {1, 2, 4, 8, 16, 32, 64};
  return options;
}

// All ranks step together. `groups`: 8 schedulers of one rank each, or 1 scheduler of eight ranks.
void Drive(const Skew& skew, const std::vector<Arrival>& workload, int groups, WorkloadWaste* waste) {
  std::vector<std::unique_ptr<Group>> all;
  for (int group = 0; group < groups; ++group) {
    all.push_back(std::make_unique<Group>(OptionsOf(skew, kRanks / groups), workload));
  }
  size_t next = 0;
  const auto has_work = [&all] {
    return std::any_of(all.begin(), all.end(), [](const auto& group) { return group->HasWork(); });
  };
  for (int turn = 0; next < workload.size() || has_work(); ++turn) {
    for (; next < workload.size() && workload[next].turn <= turn; ++next) {
      all[next % all.size()]->Submit(workload[next].request);
    }
    std::vector<int> decode_rows, prefill_rows;
    for (auto& group : all) group->Turn(&decode_rows, &prefill_rows);
    waste->decode.Add(decode_rows);
    waste->prefill.Add(prefill_rows);
  }
}

void Report(const char* load, const char* kind, const Waste& round_robin, const Waste& placed) {
  printf(
      "%-12s %-8s max over mean rows: round robin %.3f, placed %.3f; wasted rows %ld -> %ld, %.0f%% less\n",
      load, kind, round_robin.imbalance(), placed.imbalance(), round_robin.wasted(), placed.wasted(),
      Saved(round_robin, placed) * 100);
}

class RankBalance : public testing::TestWithParam<Skew> {};

TEST_P(RankBalance, WastesThirtyPercentLessThanRoundRobin) {
  const Skew& skew = GetParam();
  WorkloadWaste round_robin, placed;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    const std::vector<Arrival> workload = WorkloadOf(skew, seed, 1500);
    Drive(skew, workload, kRanks, &round_robin);
    Drive(skew, workload, 1, &placed);
  }
  EXPECT_EQ(round_robin.decode.rows, placed.decode.rows) << "the same work";
  EXPECT_EQ(round_robin.prefill.rows, placed.prefill.rows) << "the same work";
  Report(skew.name, "decode", round_robin.decode, placed.decode);
  Report(skew.name, "prefill", round_robin.prefill, placed.prefill);
  EXPECT_GE(Saved(round_robin.decode, placed.decode), 0.30);
  EXPECT_GE(Saved(round_robin.prefill, placed.prefill), 0.30);
}

INSTANTIATE_TEST_SUITE_P(Loads, RankBalance,
                         testing::Values(Skew{"LongTails", 16, 0.8, 20, 400, 40, 40, 0.5},
                                         Skew{"LongPrompts", 16, 0.8, 60, 60, 30, 500, 0.8},
                                         Skew{"Both", 32, 0.7, 30, 300, 40, 400, 1.0},
                                         Skew{"Light", 16, 0.5, 20, 200, 40, 80, 0.15}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foredraft
