// The speedup from the overlap scheduler, which plans one iteration while another runs: tokens per second of
// abacus in process with and without overlap. Runs alternate; the ratio of a pair is less noisy than its
// parts.
//
// usage: overlap [--markdown] [--quick], from the repository's root

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tests/bench/bench_report.h"
#include "tests/bench/closed_loop.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kRequestsPerStream = 8;
constexpr int kMaxTokens = 120;
constexpr int kStreams[] = {1, 16};

// One K, with overlap and without.
struct Pair {
  explicit Pair(const LoadedModel& model, int k)
      : draft_len(k),
        on(std::make_unique<ClosedLoop>(model, SettingOf(k, true))),
        off(std::make_unique<ClosedLoop>(model, SettingOf(k, false))) {}

  static Setting SettingOf(int k, bool overlap) {
    return {.draft_len = k, .max_draft_len = 3, .overlap = overlap, .max_batch_size = 16};
  }

  int draft_len;
  std::unique_ptr<ClosedLoop> on, off;
};

void Main(const ReportFlags& flags) {
  const LoadedModel& model = LoadModelOnce(kAbacusDir);
  const int rounds = flags.quick ? 1 : 15;
  BenchReport report{
      .heading = "Overlap",
      .measured = absl::StrFormat("abacus in process, 2 threads, %d requests a stream of up to %d "
                                  "tokens, strict acceptance; %d rounds, on and "
                                  "off in turns.",
                                  flags.quick ? 1 : kRequestsPerStream, kMaxTokens, rounds),
      .command = "build/cpu/bin/overlap --markdown",
      .measurements = {}};
  std::vector<Pair> pairs;
  pairs.reserve(2);
  for (const int draft_len : {0, 3}) pairs.emplace_back(model, draft_len);
  for (const Pair& pair : pairs) {
    for (const int streams : kStreams) {
      std::vector<Request> requests =
          TestRequests({.count = flags.quick ? streams : kRequestsPerStream * streams});
      for (Request& request : requests) request.max_tokens = flags.quick ? 8 : kMaxTokens;
      const std::string name = absl::StrCat("K = ", pair.draft_len, ", streams ", streams);
      Measurement on{.name = name + ", on", .unit = "tokens/s", .samples = {}};
      Measurement off{.name = name + ", off", .unit = "tokens/s", .samples = {}};
      Measurement ratio{.name = name + ", on / off", .unit = "", .samples = {}};
      for (int round = 0; round < rounds; ++round) {
        // The order alternates, so that a machine that warms up or throttles favours neither.
        const bool on_first = round % 2 == 0;
        const ClosedLoop::Stage first = (on_first ? pair.on : pair.off)->Run(streams, requests);
        const ClosedLoop::Stage second = (on_first ? pair.off : pair.on)->Run(streams, requests);
        on.samples.push_back((on_first ? first : second).rate());
        off.samples.push_back((on_first ? second : first).rate());
        ratio.samples.push_back(on.samples.back() / off.samples.back());
      }
      for (Measurement* one : {&on, &off, &ratio}) report.measurements.push_back(std::move(*one));
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
