// Tokens per second of each fixed K and of the policies that choose, in process, under a load that ramps from
// 1 to 64 streams and back. Stages are interleaved; values are medians over rounds, so they compare within
// one run.
//
// usage: draft_policy_ramp [ROUNDS] [--model DIR] [--requests N] [--markdown] [--quick], from the
// repository's root; DIR: abacus, another checkpoint with its tokenizer, or one with an Eagle3 head
// ("DIR+HEAD_DIR"); N: per stage

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <limits>
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

constexpr int kStreams[] = {1, 2, 4, 8, 16, 32, 64, 32, 16, 8, 4, 2, 1};

struct Contender {
  std::string name;
  bool is_fixed = false;
  std::unique_ptr<ClosedLoop> load;
  std::vector<double> totals;               // tokens per second of each round
  std::vector<std::vector<double>> stages;  // [round][stage] tokens per second
};

// Every stage by all contenders, one after another, because the machine's speed changes from one ten seconds
// to the next; another one is first in each stage and round.
void RunRound(std::vector<Contender>& contenders, const std::vector<Request>& requests, size_t round) {
  std::vector<ClosedLoop::Stage> totals(contenders.size());
  for (Contender& contender : contenders) contender.stages.emplace_back();
  for (size_t stage = 0; stage < std::size(kStreams); ++stage) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      const size_t turn = (i + stage + round) % contenders.size();
      const ClosedLoop::Stage ran = contenders[turn].load->Run(kStreams[stage], requests);
      contenders[turn].stages.back().push_back(ran.rate());
      totals[turn].tokens += ran.tokens;
      totals[turn].seconds += ran.seconds;
    }
  }
  for (size_t i = 0; i < contenders.size(); ++i) contenders[i].totals.push_back(totals[i].rate());
}

// The median over the rounds of what a stage gave over the best fixed K of that stage in the same round.
double OverBestFixed(const std::vector<Contender>& contenders, const Contender& policy, size_t stage) {
  std::vector<double> ratios;
  for (size_t round = 0; round < policy.stages.size(); ++round) {
    double best = 0;
    for (const Contender& each : contenders) {
      if (each.is_fixed) best = std::max(best, each.stages[round][stage]);
    }
    ratios.push_back(policy.stages[round][stage] / best);
  }
  return Summarize(ratios).p50;
}

double Median(const Contender& contender) { return Summarize(contender.totals).p50; }

// The smallest ratio of two contenders in one round.
double WorstRound(const Contender& policy, const Contender& fixed) {
  double worst = std::numeric_limits<double>::infinity();
  for (size_t round = 0; round < policy.totals.size(); ++round) {
    worst = std::min(worst, policy.totals[round] / fixed.totals[round]);
  }
  return worst;
}

void PrintPolicies(const std::vector<Contender>& contenders) {
  const Contender& best =
      *std::max_element(contenders.begin(), contenders.end(), [](const Contender& a, const Contender& b) {
        return std::pair(a.is_fixed, Median(a)) < std::pair(b.is_fixed, Median(b));
      });
  for (const Contender& contender : contenders) {
    if (contender.is_fixed) continue;
    std::printf(
        "%s over the best fixed K of all: %.3f, in the worst round %.3f; over the best one of each stage and "
        "round:",
        contender.name.c_str(), Median(contender) / Median(best), WorstRound(contender, best));
    for (size_t stage = 0; stage < std::size(kStreams); ++stage) {
      std::printf(" %.2f", OverBestFixed(contenders, contender, stage));
    }
    std::printf("\n");
  }
}

void Print(const std::vector<Contender>& contenders, const std::string& dir, int rounds, int requests,
           bool markdown) {
  if (markdown) {
    std::printf(
        "## Draft policies on a ramp\n\n`build/cpu/bin/draft_policy_ramp %d --model %s --requests %d "
        "--markdown`: %s in process, 2 threads, %d requests per stage, tokens per second, medians of %d "
        "rounds, stages interleaved; the last column with its quartiles.\n\n",
        rounds, dir.c_str(), requests, std::filesystem::path(dir).filename().c_str(), requests, rounds);
  }
  std::vector<std::string> head = {"streams"};
  for (const int streams : kStreams) head.push_back(std::to_string(streams));
  head.push_back("all");
  Table table(head);
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
  }
  std::fflush(stdout);
  table.Print(markdown);
  PrintPolicies(contenders);
}

std::vector<Contender> ContendersFor(const LoadedModel& model) {
  const bool dspark = DraftsInBlocks(model.config);
  const std::vector<int> draft_lens =
      dspark ? std::vector<int>{0, 1, 2, 3, 5} : std::vector<int>{0, 1, 2, 3, 5, 7};
  std::vector<std::pair<std::string, DraftPolicyKind>> policies = {{"adaptive", DraftPolicyKind::kAdaptive}};
  if (dspark) policies.emplace_back("confidence", DraftPolicyKind::kConfidence);
  std::vector<Contender> contenders;
  const auto add = [&](const std::string& name, int draft_len, DraftPolicyKind policy) {
    contenders.push_back(
        {.name = name,
         .is_fixed = policy == DraftPolicyKind::kFixed,
         .load = std::make_unique<ClosedLoop>(
             model, Setting{.draft_len = draft_len, .max_batch_size = 64, .policy = policy})});
  };
  for (const int draft_len : draft_lens) {
    add("K = " + std::to_string(draft_len), draft_len, DraftPolicyKind::kFixed);
  }
  for (const auto& [name, policy] : policies) add(name, draft_lens.back(), policy);
  return contenders;
}

void Main(const std::string& dir, int rounds, int requests_per_stage, bool markdown) {
  const LoadedModel& model = LoadModelOnce(dir);
  std::vector<Request> requests = TestRequests({.count = requests_per_stage});
  for (Request& request : requests) request.max_tokens = 120;
  std::vector<Contender> contenders = ContendersFor(model);
  for (int round = 0; round < rounds; ++round) RunRound(contenders, requests, static_cast<size_t>(round));
  Print(contenders, dir, rounds, requests_per_stage, markdown);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  int rounds = 3, requests = 96;
  bool markdown = false, quick = false;
  std::string dir = foredraft::kAbacusDir;
  foredraft::ParseBenchFlags(argc, argv,
                             {{"ROUNDS", &rounds},
                              {"--model", &dir},
                              {"--requests", &requests},
                              {"--markdown", &markdown},
                              {"--quick", &quick}});
  foredraft::Main(dir, quick ? 1 : rounds, quick ? 2 : requests, markdown);
}
