// Decode steps of a whole model of random weights: time by rows, K, graph or eager, overlapped or not, the
// idle time of the device between two steps, and the roofline counted from the ops the step submits.
//
// clang-format off
// usage: gpu_step [--backend cuda|cpu] [--model CONFIG_JSON] [--ranks N] [--context N] [--max-rows N]
//   --model    default deploy/configs/r1-shape-61x32.json: one rank's share of DeepSeek-R1
//   --ranks    1, 2, 4 or 8: the model has one rank's share of the experts, and copies of the same size replace
//              the exchange with the other ranks (copy_communicator.h); default 8 with the default model, else 1
//   --context  positions each sequence attends, default 4096: zeros in the cache, no prompt is computed
// clang-format on
//
// Device events time each step. The host's clock times the period from one step to the next, as a mean over
// all steps. Idle is the period less the mean step. Drafts are accepted at the lengths published for
// R1.

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "config/model_config.h"
#include "engine/weights/dummy_weights.h"
#include "tests/bench/bench_flags.h"
#include "tests/bench/copy_communicator.h"
#include "tests/bench/library_rates.h"
#include "tests/bench/step_bench.h"

namespace foredraft {
namespace {

constexpr int kRows[] = {1, 8, 32, 128};
constexpr int kMaxDraftLen = 3;
constexpr int kWarmSteps = 3;
constexpr int kTimedSteps = 24;
constexpr int kMaxSteps = 2 * (kWarmSteps + kTimedSteps) + 3;  // of a sequence: both ways to submit

struct Options {
  std::string backend = "cuda";
  std::string model = "deploy/configs/r1-shape-61x32.json";
  int ranks = 0;  // 0 = by the model
  int context = 4096;
  int max_rows = 128;
};

struct Timing {
  double step_seconds = 0;    // median, of the device
  double idle_seconds = 0;    // mean, between two steps
  double period_seconds = 0;  // mean
};

class GpuStep {
 public:
  // `config` has the experts of all ranks.
  GpuStep(const Options& options, const ModelConfig& config, bool graphs) {
    auto device = CreateDevice(options.backend, {.threads = 2});
    CHECK(device.ok()) << device.status().ToString();
    auto counting = std::make_unique<CountingDevice>(*std::move(device));
    device_ = counting.get();
    const auto stream = counting->CreateStream();
    const int ranks = options.ranks;
    auto weights = MakeDummyWeights(config, 1, *counting, *stream, nullptr, {.rank = 0, .size = ranks});
    CHECK(weights.ok()) << weights.status().ToString();
    std::unique_ptr<Communicator> others;
    if (ranks > 1) {
      const int experts = config.n_routed_experts;
      ChooseOwnExperts(*counting, *weights, experts, experts / ranks);
      const int rows = std::min(options.max_rows * (kMaxDraftLen + 1), MoeRowsAtOnce(ranks));
      auto copies = CopyCommunicator::Create(*counting, ranks, experts, rows * config.num_experts_per_tok);
      CHECK(copies.ok()) << copies.status().ToString();
      others = *std::move(copies);
    }
    StepBenchOptions step{.context = options.context,
                          .max_rows = options.max_rows,
                          .max_draft_len = kMaxDraftLen,
                          .max_num_tokens = options.max_rows,
                          .max_steps = kMaxSteps,
                          .graphs = graphs};
    for (const int rows : kRows) {
      if (rows < options.max_rows) step.batch_sizes.push_back(rows);
    }
    step.batch_sizes.push_back(options.max_rows);
    bench_ = std::make_unique<StepBench>(step, config, std::move(counting), *std::move(weights),
                                         std::move(others));
  }

  void Start(int rows, int draft_len) { bench_->Start(rows, draft_len); }

  // The cost of the decode step that follows Start.
  OpCost Cost(int draft_len) {
    device_->StartCounting({.context = bench_->context(), .rows_per_sequence = draft_len + 1});
    bench_->engine().Submit(bench_->Step(draft_len), 0);
    const OpCost cost = device_->TakeCost();
    bench_->Finish();
    return cost;
  }

  Timing Time(int draft_len, bool overlap) {
    std::vector<double> steps;
    std::chrono::steady_clock::time_point start;
    if (overlap) bench_->engine().Submit(bench_->Step(draft_len), 0);
    for (int i = 0; i < kWarmSteps + kTimedSteps; ++i) {
      if (i == kWarmSteps) start = std::chrono::steady_clock::now();
      const double seconds = bench_->Run(draft_len).decode_seconds;
      if (i >= kWarmSteps) steps.push_back(seconds);
    }
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    if (overlap) bench_->Finish();
    const double busy = std::accumulate(steps.begin(), steps.end(), 0.0);
    std::nth_element(steps.begin(), steps.begin() + kTimedSteps / 2, steps.end());
    return {.step_seconds = steps[kTimedSteps / 2],
            .idle_seconds = (wall.count() - busy) / kTimedSteps,
            .period_seconds = wall.count() / kTimedSteps};
  }

 private:
  CountingDevice* device_ = nullptr;  // the engine's
  std::unique_ptr<StepBench> bench_;
};

void Print(int rows, int draft_len, bool graphs, bool overlap, const Timing& timing, const OpCost& cost,
           const DeviceRates& rates) {
  const double roofline = RooflineSeconds(cost, rates);
  std::cout << absl::StreamFormat(
                   "%5d %3d %-6s %-7s %10.1f %10.1f %9.1f %9.2f %10.1f %6.2f %9.1f\n", rows, draft_len,
                   graphs ? "graph" : "eager", overlap ? "on" : "off", timing.step_seconds * 1e6,
                   timing.period_seconds * 1e6, timing.idle_seconds * 1e6, cost.bytes / 1e9, roofline * 1e6,
                   timing.step_seconds / roofline, kAcceptedLength[draft_len] / timing.period_seconds)
            << std::flush;
}

int Run(const Options& options) {
  auto config = ReadModelConfig(options.model);
  if (!config.ok()) {
    std::cerr << "gpu_step: " << config.status().message() << "\n";
    return 1;
  }
  config->n_routed_experts *= options.ranks;
  auto probe = CreateDevice(options.backend, {.threads = 2});
  if (!probe.ok()) {
    std::cerr << "gpu_step: " << probe.status().message() << "\n";
    return 1;
  }
  const DeviceRates rates = MeasureRates(**probe, options.backend == "cpu");
  std::cout << absl::StreamFormat(
      "%s\n%s, rank 0 of %d, context %d, copy %.0f GB/s, BF16 %.0f TFLOPS measured\n\n", (*probe)->name(),
      options.model, options.ranks, options.context, rates.bytes_per_second / 1e9, rates.bf16_flops / 1e12);
  probe->reset();
  std::cout << absl::StreamFormat("%5s %3s %-6s %-7s %10s %10s %9s %9s %10s %6s %9s\n", "rows", "K", "how",
                                  "overlap", "step us", "period us", "idle us", "GB", "roofline", "ratio",
                                  "tok/s/row");
  std::map<std::pair<int, int>, OpCost> costs;  // by rows and K, counted where ops are submitted: eagerly
  for (const bool graphs : {false, true}) {
    GpuStep bench(options, *config, graphs);
    for (const int rows : kRows) {
      if (rows > options.max_rows) continue;
      for (int draft_len = 0; draft_len <= kMaxDraftLen; ++draft_len) {
        bench.Start(rows, draft_len);
        if (!graphs) costs[{rows, draft_len}] = bench.Cost(draft_len);
        for (const bool overlap : {false, true}) {
          Print(rows, draft_len, graphs, overlap, bench.Time(draft_len, overlap), costs[{rows, draft_len}],
                rates);
        }
      }
    }
  }
  return 0;
}

int Main(int argc, char** argv) {
  Options options;
  ParseBenchFlags(argc, argv,
                  {{"--backend", &options.backend},
                   {"--model", &options.model},
                   {"--ranks", &options.ranks},
                   {"--context", &options.context},
                   {"--max-rows", &options.max_rows}});
  if (options.ranks == 0) options.ranks = options.model == Options().model ? 8 : 1;
  if (options.ranks > 8 || (options.ranks & (options.ranks - 1)) != 0) {
    std::cerr << "gpu_step: --ranks: " << options.ranks << ", allowed 1, 2, 4, 8\n";
    return 2;
  }
  return Run(options);
}

}  // namespace
}  // namespace foredraft

int main(int argc, char** argv) { return foredraft::Main(argc, argv); }
