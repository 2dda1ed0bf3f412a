// How often drafts of sampled requests are accepted: drawn with the target's own noise (what the engine does,
// docs/speculation.md section 2), and, for comparison, chosen greedily (as other engines do). Tokens never
// depend on drafts, so the greedy drafter is replayed over the tokens that the engine gave.
//
// usage: sampled_acceptance [requests]     prints a Markdown table; from the repository's root

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/from_scratch.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kDraftLen = 3;

struct Tally {
  int steps = 0;
  int accepted = 0;
  double length() const { return steps == 0 ? 1.0 : 1.0 + static_cast<double>(accepted) / steps; }
};

// The steps that a drafter with these sampling parameters takes over `output`.
Tally Replay(FromScratch& scratch, const Request& request, const std::vector<int32_t>& output,
             const SamplingParams& drafting) {
  Tally tally;
  const int prompt_len = static_cast<int>(request.prompt_ids.size());
  size_t emitted = 1;  // by the prefill, which also makes the first draft
  int draft_len = 1;
  while (emitted < output.size()) {
    std::vector<int32_t> tokens = request.prompt_ids;
    tokens.insert(tokens.end(), output.begin(), output.begin() + emitted);
    const std::vector<int32_t> drafts = scratch.Drafts(tokens, prompt_len, draft_len, drafting);
    size_t equal = 0;
    while (equal < drafts.size() && emitted + equal < output.size() &&
           drafts[equal] == output[emitted + equal]) {
      ++equal;
    }
    // The step's last token is the target's own.
    const size_t count = std::min(equal + 1, output.size() - emitted);
    ++tally.steps;
    tally.accepted += static_cast<int>(count) - 1;
    emitted += count;
    draft_len = kDraftLen;
  }
  return tally;
}

void Run(const LoadedModel& model, int request_count, const std::string& questions) {
  for (const float temperature : {0.6f, 1.0f, 1.5f}) {
    std::vector<Request> requests = TestRequests({.count = request_count, .questions = questions});
    for (Request& request : requests) request.sampling.temperature = temperature;
    const RunRecord run = RunRequests(model, {.draft_len = kDraftLen}, requests);
    FromScratch scratch(*model.device, model.config, model.weights, 400);
    Tally engine, noise, greedy;
    size_t tokens = 0;
    for (size_t i = 0; i < requests.size(); ++i) {
      const std::vector<int32_t>& output = run.requests[i].token_ids;
      const auto add = [&](Tally& sum, const SamplingParams& drafting) {
        const Tally one = Replay(scratch, requests[i], output, drafting);
        sum.steps += one.steps;
        sum.accepted += one.accepted;
      };
      add(noise, requests[i].sampling);
      SamplingParams argmax = requests[i].sampling;
      argmax.temperature = 0;
      add(greedy, argmax);
      engine.steps += run.requests[i].steps;
      engine.accepted += run.requests[i].accepted_tokens;
      tokens += output.size();
    }
    CHECK_EQ(engine.steps, noise.steps) << "the replay differs from the engine's steps";
    CHECK_EQ(engine.accepted, noise.accepted);
    std::printf("| %s | %.1f | %.3f | %.3f | %zu |\n", questions.c_str(), temperature, noise.length(),
                greedy.length(), tokens);
  }
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  const int count = argc > 1 ? std::atoi(argv[1]) : 100;
  if (count < 1) {
    std::fprintf(stderr, "requests: %s, allowed from 1\n", argv[1]);
    return 2;
  }
  std::printf("| questions | temperature | same noise | greedy drafts | tokens |\n|---|---|---|---|---|\n");
  const foredraft::LoadedModel& model = foredraft::LoadModelOnce(foredraft::kAbacusDir);
  for (const char* questions : {"heldout.jsonl", "free.jsonl"}) foredraft::Run(model, count, questions);
}
