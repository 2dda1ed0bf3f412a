// The speedup from a model's own drafts at their real acceptance on abacus' questions: tokens per second over
// those of the model without drafts, at one stream and at four, in process. Rounds are interleaved.
//
// usage: draft_gain [ROUNDS] [--model DIR] [--markdown] [--quick], from the repository's root; DIR: abacus,
// or another checkpoint with its tokenizer, or one with an Eagle3 head: "DIR+HEAD_DIR"

#include <cstdio>
#include <filesystem>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "client/measure/summary.h"
#include "client/measure/table.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/closed_loop.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kMaxTokens = 120;
constexpr int kStreams[] = {1, 4};

struct Contender {
  std::string name;
  std::unique_ptr<ClosedLoop> load;
};

// What one contender reaches at one number of streams, by rounds.
struct Rates {
  std::vector<double> tokens_per_second;
  std::vector<double> gains;  // over the first contender in the same round
  double length = 0;          // tokens per decode step; a request's first token comes from the prefill
};

// MTP modules are trained for few drafts; a block has all of them anyway.
std::vector<int> DraftLensOf(const ModelConfig& config) {
  if (!DraftsInBlocks(config)) return {0, 1, 3};
  std::vector<int> lens(config.dspark->block_size + 1);
  std::iota(lens.begin(), lens.end(), 0);
  return lens;
}

void Main(const std::string& dir, int rounds, int request_count, bool markdown) {
  const LoadedModel& model = LoadModelOnce(dir);
  const std::vector<int> draft_lens = DraftLensOf(model.config);
  std::vector<Request> requests = TestRequests({.count = request_count});
  for (Request& request : requests) request.max_tokens = kMaxTokens;
  std::vector<Contender> contenders;
  contenders.push_back(
      {"no module", std::make_unique<ClosedLoop>(model, Setting{.mtp = false, .max_batch_size = 4})});
  for (const int draft_len : draft_lens) {
    contenders.push_back({"K = " + std::to_string(draft_len),
                          std::make_unique<ClosedLoop>(model, Setting{.draft_len = draft_len,
                                                                      .max_draft_len = draft_lens.back(),
                                                                      .max_batch_size = 4})});
  }
  if (markdown) {
    std::printf(
        "## Drafts of %s\n\n`build/cpu/bin/draft_gain %d --model %s --markdown`: %d questions in process, 2 "
        "threads, real "
        "acceptance; medians and quartiles of %d interleaved rounds, the gain within each round.\n\n",
        std::filesystem::path(dir).filename().c_str(), rounds, dir.c_str(), request_count, rounds);
    std::fflush(stdout);
  }
  Table table({"streams", "drafts", "tokens/s", "tokens a step", "over no module"});
  for (const int streams : kStreams) {
    std::vector<Rates> rates(contenders.size());
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < contenders.size(); ++i) {
        const ClosedLoop::Stage stage = contenders[i].load->Run(streams, requests);
        rates[i].tokens_per_second.push_back(stage.rate());
        rates[i].gains.push_back(stage.rate() / rates[0].tokens_per_second.back());
        rates[i].length =
            static_cast<double>(stage.tokens - request_count) / static_cast<double>(stage.steps);
      }
    }
    for (size_t i = 0; i < contenders.size(); ++i) {
      const Summary rate = Summarize(rates[i].tokens_per_second);
      const Summary gain = Summarize(rates[i].gains);
      table.Add({std::to_string(streams), contenders[i].name,
                 absl::StrFormat("%.0f (%.0f-%.0f)", rate.p50, rate.p25, rate.p75),
                 absl::StrFormat("%.2f", rates[i].length),
                 absl::StrFormat("%.2f (%.2f-%.2f)", gain.p50, gain.p25, gain.p75)});
    }
  }
  table.Print(markdown);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) {
  int rounds = 7;
  bool markdown = false, quick = false;
  std::string dir = foredraft::kAbacusDir;
  foredraft::ParseBenchFlags(
      argc, argv, {{"ROUNDS", &rounds}, {"--model", &dir}, {"--markdown", &markdown}, {"--quick", &quick}});
  foredraft::Main(dir, quick ? 1 : rounds, quick ? 2 : 48, markdown);
}
