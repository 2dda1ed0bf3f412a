// What a thinking budget that is not reached costs a step: abacus in process, the same requests with a budget
// above all that they write and with none. Runs alternate; the ratio of a pair is less noisy than its parts.
//
// usage: budget_step [--markdown] [--quick], from the repository's root

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "server/text/tokenizer.h"
#include "tests/bench/bench_report.h"
#include "tests/bench/closed_loop.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kMaxTokens = 120;
constexpr int kStreams[] = {1, 32};
constexpr int kDraftLens[] = {0, 3};

// All of them think from the first token to the last: nothing ends a thought but the budget.
std::vector<Request> Requests(int count, bool sampled, bool budget, bool quick) {
  const auto tokenizer = Tokenizer::Load(absl::StrCat(kAbacusDir, "/tokenizer.json"));
  CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  std::vector<Request> requests = TestRequests({.count = count});
  for (Request& request : requests) {
    request.max_tokens = quick ? 8 : kMaxTokens;
    request.stop_ids.clear();
    request.sampling.temperature = sampled ? 0.8f : 0.0f;
    request.thinking = {.begin = *(*tokenizer)->AddedTokenId("<think>"),
                        .end = *(*tokenizer)->AddedTokenId("</think>")};
    request.prompt_phase = Phase::kThinking;
    if (budget) request.thinking_budget = {.limit = 2 * kMaxTokens, .end_ids = {request.thinking.end}};
  }
  return requests;
}

// Runs are short, so that what slows the machine down for a while slows both of a pair.
int RoundsAt(int streams) { return streams == 1 ? 400 : 60; }

double MillisecondsPerStep(const ClosedLoop::Stage& stage, int streams) {
  return 1e3 * stage.seconds * streams / static_cast<double>(stage.steps);
}

void Main(const ReportFlags& flags) {
  const LoadedModel& model = LoadModelOnce(kAbacusDir);
  BenchReport report{
      .heading = "A thinking budget that is not reached",
      .measured = absl::StrFormat("abacus in process, 2 threads, requests of %d tokens that end at no other "
                                  "token; %d pairs of runs at bucket 1, %d at bucket 32, with and without in "
                                  "turns.",
                                  kMaxTokens, RoundsAt(1), RoundsAt(32)),
      .command = "build/cpu/bin/budget_step --markdown",
      .measurements = {}};
  for (const int draft_len : kDraftLens) {
    ClosedLoop loop(model, {.draft_len = draft_len, .max_draft_len = 3, .max_batch_size = 32});
    for (const int streams : kStreams) {
      for (const bool sampled : {false, true}) {
        const int rounds = flags.quick ? 1 : RoundsAt(streams);
        const std::vector<Request> with = Requests(streams, sampled, true, flags.quick);
        const std::vector<Request> without = Requests(streams, sampled, false, flags.quick);
        const std::string name = absl::StrCat("K = ", draft_len, ", bucket ", streams,
                                              sampled ? ", sampled, step" : ", greedy, step");
        Measurement step{.name = name, .unit = "ms", .samples = {}};
        Measurement more{.name = name + ", the budget adds", .unit = "%", .samples = {}};
        loop.Run(streams, with);
        for (int round = 0; round < rounds; ++round) {
          // The order alternates, so that a machine that warms up or throttles favours neither.
          const bool with_first = round % 2 == 0;
          const double first = MillisecondsPerStep(loop.Run(streams, with_first ? with : without), streams);
          const double second = MillisecondsPerStep(loop.Run(streams, with_first ? without : with), streams);
          step.samples.push_back(with_first ? second : first);
          more.samples.push_back(100 * (with_first ? first / second : second / first) - 100);
        }
        for (Measurement* one : {&step, &more}) report.measurements.push_back(std::move(*one));
      }
    }
  }
  Print(report, flags.markdown);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  foredraft::Main(foredraft::ParseReportFlags(argc, argv));
  return 0;
}
