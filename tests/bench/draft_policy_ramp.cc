// Tokens per second of each fixed K and of the adaptive policy, on abacus in process, under a load that ramps
// from 1 to 64 streams and back. Rounds are interleaved; values are medians over rounds, so they compare
// within one run.
//
// usage: draft_policy_ramp [ROUNDS] [--markdown] [--quick], from the repository's root

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/measure/summary.h"
#include "client/measure/table.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/closed_loop.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kMaxDraftLen = 7;
constexpr int kStreams[] = {1, 2, 4, 8, 16, 32, 64, 32, 16, 8, 4, 2, 1};

struct Contender {
  std::string name;
  std::unique_ptr<ClosedLoop> load;
  std::vector<double> totals;               // tokens per second of each round
  std::vector<std::vector<double>> stages;  // [round][stage] tokens per second
};

void RunRound(Contender& contender, const std::vector<Request>& requests) {
  ClosedLoop::Stage total;
  contender.stages.emplace_back();
  for (const int streams : kStreams) {
    const ClosedLoop::Stage stage = contender.load->Run(streams, requests);
    contender.stages.back().push_back(stage.rate());
    total.tokens += stage.tokens;
    total.seconds += stage.seconds;
  }
  contender.totals.push_back(total.rate());
}

void Print(const std::vector<Contender>& contenders, int rounds, int requests, bool markdown) {
  if (markdown) {
    std::printf(
        "## Draft policies on a ramp\n\n`build/cpu/bin/draft_policy_ramp %d --markdown`: abacus in process, "
        "2 "
        "threads, %d requests per stage, tokens per second, medians of %d interleaved rounds; the last "
        "column "
        "with its quartiles.\n\n",
        rounds, requests, rounds);
  }
  std::vector<std::string> head = {"streams"};
  for (const int streams : kStreams) head.push_back(std::to_string(streams));
  head.push_back("all");
  Table table(head);
  double best = 0;
  for (const Contender& contender : contenders) {
    std::vector<std::string> row = {contender.name};
    for (size_t stage = 0; stage < std::size(kStreams); ++stage) {
      std::vector<double> rounds_of_stage;
      for (const std::vector<double>& round : contender.stages) rounds_of_stage.push_back(round[stage]);
      row.push_back(absl::StrFormat("%.0f", Summarize(rounds_of_stage).p50));
    }
    const Summary all = Summarize(contender.totals);
    row.push_back(absl::StrFormat("%.0f (%.0f-%.0f)", all.p50, all.p25, all.p75));
    table.Add(row);
    if (&contender != &contenders.back()) best = std::max(best, all.p50);
  }
  std::fflush(stdout);
  table.Print(markdown);
  std::printf("Adaptive over the best fixed K: %.3f\n", Summarize(contenders.back().totals).p50 / best);
}

void Main(int rounds, int requests_per_stage, bool markdown) {
  const LoadedModel& model = LoadModelOnce(kAbacusDir);
  std::vector<Request> requests = TestRequests({.count = requests_per_stage});
  for (Request& request : requests) request.max_tokens = 120;
  std::vector<Contender> contenders;
  for (const int draft_len : {0, 1, 2, 3, 5, 7}) {
    contenders.push_back(
        {"K = " + std::to_string(draft_len),
         std::make_unique<ClosedLoop>(model, Setting{.draft_len = draft_len, .max_batch_size = 64}),
         {},
         {}});
  }
  contenders.push_back({"adaptive",
                        std::make_unique<ClosedLoop>(model, Setting{.draft_len = kMaxDraftLen,
                                                                    .max_batch_size = 64,
                                                                    .policy = DraftPolicyKind::kAdaptive}),
                        {},
                        {}});
  for (int round = 0; round < rounds; ++round) {
    for (Contender& contender : contenders) RunRound(contender, requests);
  }
  Print(contenders, rounds, requests_per_stage, markdown);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  int rounds = 3;
  bool markdown = false, quick = false;
  foredraft::ParseBenchFlags(argc, argv,
                             {{"ROUNDS", &rounds}, {"--markdown", &markdown}, {"--quick", &quick}});
  foredraft::Main(quick ? 1 : rounds, quick ? 2 : 96, markdown);
}
