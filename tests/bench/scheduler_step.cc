// The scheduler's time per iteration: Plan and Commit in the steady state, K = 3, without a model.
// Requests of all lengths come and go, half of their prompts share a start, prompts are chunked, drafts are
// accepted 0 to 3 at a time, so that sequences grow and are rewound across block borders. As in
// the overlapped serving loop, N + 1 is planned before N is committed.
//
// usage: scheduler_step [--markdown] [--quick]

#include <benchmark/benchmark.h>

#include <chrono>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "scheduler/scheduler.h"
#include "tests/bench/bench_report.h"
#include "tests/bench/free_rank.h"

namespace foredraft {
namespace {

constexpr int kDraftLen = 3;
constexpr int kShortestPrompt = 64, kLongestPrompt = 768;
constexpr int kFewestTokens = 64, kMostTokens = 768;
constexpr int kTokensPerBlock = 64;
constexpr int kSharedStarts = 16, kSharedStartLen = 256;

struct StepSeconds {
  double plan = 0;
  double commit = 0;
};

class SteadyScheduler {
 public:
  SteadyScheduler(int ranks, int slots) : slots_(slots), scheduler_(OptionsOf(ranks, slots)) {
    for (int rank = 0; rank < ranks; ++rank) {
      ranks_.push_back(std::make_unique<FreeRank>(FreeRankOptions{
          .rank = rank, .slot_count = slots, .max_draft_len = kDraftLen, .accept_all = false}));
    }
    // Runs until all of the first sequences have been replaced, so that no two are in step.
    const uint64_t first_crowd = static_cast<uint64_t>(ranks) * slots;
    while (finished_ < 2 * first_crowd) Iterate();
  }

  StepSeconds Iterate() {
    while (open_ < static_cast<int>(ranks_.size()) * slots_) Submit();
    StepSeconds seconds;
    auto start = std::chrono::steady_clock::now();
    const IterationPlan plan = scheduler_.Plan(start);
    seconds.plan = Since(start);
    for (auto& rank : ranks_) CHECK(rank->Launch(plan).ok());
    if (++in_flight_ == 2) seconds.commit = Commit();
    return seconds;
  }

 private:
  static SchedulerOptions OptionsOf(int ranks, int slots) {
    SchedulerOptions options;
    options.rank_count = ranks;
    options.max_batch_size = slots;
    options.groups[0].tokens_per_block = kTokensPerBlock;
    options.groups[0].block_count = 1 + slots * ((kLongestPrompt + kMostTokens) / kTokensPerBlock + 1);
    options.batch_sizes = {1, 2, 4, 8, 16, 32, 64, 128};
    options.max_draft_len = options.draft_len = kDraftLen;
    options.drafter.rows_ahead = kDraftLen;
    return options;
  }

  static double Since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }

  double Commit() {
    std::vector<RankResult> results;
    for (auto& rank : ranks_) results.push_back(*rank->Collect());
    const auto start = std::chrono::steady_clock::now();
    scheduler_.Commit(std::move(results));
    const double seconds = Since(start);
    --in_flight_;
    for (const RequestUpdate& update : scheduler_.TakeUpdates()) {
      if (update.finish == FinishReason::kNone) continue;
      --open_;
      ++finished_;
    }
    return seconds;
  }

  int Random(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random_); }

  void Submit() {
    Request request;
    request.id = next_id_++;
    request.prompt_ids.resize(Random(kShortestPrompt, kLongestPrompt));
    for (int32_t& id : request.prompt_ids) id = Random(0, 1 << 16);
    if (next_id_ % 2 == 0) {
      const size_t shared = std::min<size_t>(kSharedStartLen, request.prompt_ids.size());
      std::fill_n(request.prompt_ids.begin(), shared, Random(1, kSharedStarts));
    }
    request.max_tokens = Random(kFewestTokens, kMostTokens);
    request.stop_ids = {1};
    request.sampling.seed = request.id;
    request.arrival = std::chrono::steady_clock::now();
    request.deadline = request.arrival + std::chrono::seconds(600);
    CHECK(scheduler_.Submit(std::move(request)).ok());
    ++open_;
  }

  const int slots_;
  std::mt19937 random_{17};
  Scheduler scheduler_;
  std::vector<std::unique_ptr<FreeRank>> ranks_;
  int in_flight_ = 0;
  int open_ = 0;
  uint64_t finished_ = 0;
  uint64_t next_id_ = 1;
};

void MeasureSteps(benchmark::State& state) {
  static auto* const schedulers = new std::map<std::pair<int64_t, int64_t>, std::unique_ptr<SteadyScheduler>>;
  auto& scheduler = (*schedulers)[{state.range(0), state.range(1)}];
  if (scheduler == nullptr) {
    scheduler =
        std::make_unique<SteadyScheduler>(static_cast<int>(state.range(0)), static_cast<int>(state.range(1)));
  }
  StepSeconds sum;
  for (auto _ : state) {
    const StepSeconds seconds = scheduler->Iterate();
    state.SetIterationTime(seconds.plan + seconds.commit);
    sum.plan += seconds.plan;
    sum.commit += seconds.commit;
  }
  state.counters["plan"] = sum.plan / static_cast<double>(state.iterations());
  state.counters["commit"] = sum.commit / static_cast<double>(state.iterations());
}

// Collects the repetitions of every shape.
class Gatherer : public benchmark::BenchmarkReporter {
 public:
  explicit Gatherer(std::vector<Measurement>* measurements) : measurements_(*measurements) {}

  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>& runs) override {
    for (const Run& run : runs) {
      if (run.run_type != Run::RT_Iteration) continue;
      const std::string shape = run.run_name.function_name;
      const double plan = run.counters.at("plan").value, commit = run.counters.at("commit").value;
      Add(shape + ", Plan", plan * 1e6);
      Add(shape + ", Commit", commit * 1e6);
      Add(shape + ", both", (plan + commit) * 1e6);
    }
  }

 private:
  void Add(const std::string& name, double microseconds) {
    AddSample(measurements_, name, "us", microseconds);
  }

  std::vector<Measurement>& measurements_;
};

void Main(const ReportFlags& flags) {
  constexpr std::pair<int, int> kShapes[] = {{1, 8}, {1, 128}, {8, 128}};
  const int rounds = flags.quick ? 1 : 15;
  for (const auto& [ranks, slots] : kShapes) {
    if (flags.quick && ranks > 1) continue;
    const std::string name = absl::StrFormat("%d x %d", ranks, slots);
    benchmark::RegisterBenchmark(name.c_str(), MeasureSteps)
        ->Args({ranks, slots})
        ->UseManualTime()
        ->Iterations(flags.quick ? 20 : 500)
        ->Repetitions(rounds);
  }
  BenchReport report{.heading = "Scheduler",
                     .measured = absl::StrFormat("an iteration's Plan and Commit, K = %d, ranks x sequences, "
                                                 "steady state, no model; means of %d iterations, %d rounds.",
                                                 kDraftLen, flags.quick ? 20 : 500, rounds),
                     .command = "build/cpu/bin/scheduler_step --markdown",
                     .measurements = {}};
  Gatherer gatherer(&report.measurements);
  benchmark::RunSpecifiedBenchmarks(&gatherer);
  Print(report, flags.markdown);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  foredraft::Main(foredraft::ParseReportFlags(argc, argv));
  return 0;
}
