// step_bench on a GPU: decode steps of a whole model of random weights: time by rows, K, graph or eager,
// overlapped or not, with the side branches or in one line, the idle time of the device between two steps,
// the roofline counted from the ops the step submits, and the predicted time (paper_device.h).
//
// Device events time each step. The host's clock times the period from one step to the next, as a mean over
// all steps. Idle is the period less the mean step. Drafts are accepted at published
// lengths (AcceptedLength).

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/activations.h"
#include "engine/model/model_config.h"
#include "engine/model_weights.h"
#include "tests/bench/bench_json.h"
#include "tests/bench/copy_communicator.h"
#include "tests/bench/library_rates.h"
#include "tests/bench/paper_communicator.h"
#include "tests/bench/paper_device.h"
#include "tests/bench/slowest_rank.h"
#include "tests/bench/step_bench.h"
#include "tests/bench/step_options.h"

namespace foredraft {
namespace {

constexpr int kWarmSteps = 3;
constexpr int kTimedSteps = 24;
constexpr int kMaxSteps = 2 * (kWarmSteps + kTimedSteps) + 3;  // of a sequence: both ways to submit

struct Options : StepOptions {
  int prompt = 0;  // tokens of a chunk that is computed instead of decode steps
  int warm_steps() const { return quick ? 0 : kWarmSteps; }
  int timed_steps() const { return quick ? 1 : kTimedSteps; }
  std::vector<int> draft_lens(const ModelConfig& config) const {
    return quick ? std::vector<int>{3} : BenchDraftLens(config);
  }
  int max_rows() const { return rows.back(); }
};

// A way to submit steps.
struct How {
  std::string name;  // "eager", "graph", "unforked"
  bool graphs() const { return name != "eager"; }
  bool branches() const { return name != "unforked"; }
};

struct Timing {
  double step_seconds = 0;    // median, of the device
  double idle_seconds = 0;    // mean, between two steps
  double period_seconds = 0;  // mean
};

// Tables of hash layers spread the rows of different tokens as routers without preferences do.
ExpertChoice ChoiceOf(const ModelConfig& config, int ranks) {
  return {.expert_count = config.n_routed_experts,
          .ranks = ranks,
          .top_k = config.num_experts_per_tok,
          .groups = config.n_group,
          .chosen_groups = config.topk_group};
}

class GpuStep {
 public:
  // `config` has the experts of all ranks.
  GpuStep(const Options& options, const ModelConfig& config, std::unique_ptr<Device> device, bool graphs) {
    auto counting = std::make_unique<CountingDevice>(std::move(device));
    device_ = counting.get();
    const auto stream = counting->CreateStream();
    const int ranks = options.ranks;
    const RankLayout layout =
        options.attention_tp == 1
            ? RankLayout::DataParallel(ranks)
            : RankLayout{.attention_tp = ranks, .moe_ep = ranks / options.moe_tp, .moe_tp = options.moe_tp};
    expert_ranks_ = layout.moe_ep;
    if (layout.moe_ep > 1) slowest_ = std::make_shared<SlowestRank>(ChoiceOf(config, layout.moe_ep));
    const int max_draft_len = options.prompt > 0 ? 0 : BenchDraftLens(config).back();
    const int largest_rows = std::max(options.prompt, options.max_rows() * (max_draft_len + 1));
    const int modules = config.dspark.has_value() ? config.num_nextn_predict_layers : 1;
    auto weights = MakeDummyWeights(config, modules, *counting, *stream, nullptr, {.layout = layout});
    CHECK(weights.ok()) << weights.status().ToString();
    std::unique_ptr<Communicator> others;
    if (ranks > 1 && (options.nccl || options.windows)) {
      others = std::make_unique<PaperCommunicator>(*FindGpuModel(options.gpu), ranks, options.windows);
    } else if (ranks > 1) {
      std::vector<int32_t> others_choices;
      if (layout.attention_dp > 1) {
        ChooseOwnExperts(*counting, *weights, config, config.n_routed_experts / ranks);
        others_choices = OthersChoices(*slowest_, std::min(largest_rows, MoePromptRowsAtOnce(layout)));
      }
      auto copies = CopyCommunicator::Create(*counting, ranks, others_choices);
      CHECK(copies.ok()) << copies.status().ToString();
      others = *std::move(copies);
    }
    StepBenchOptions step{.context = options.context,
                          .max_rows = options.max_rows(),
                          .batch_sizes = options.rows,
                          .max_draft_len = max_draft_len,
                          .max_num_tokens = std::max(options.prompt, options.max_rows()),
                          .max_steps = kMaxSteps,
                          .graphs = graphs,
                          .layout = layout};
    bench_ = std::make_unique<StepBench>(step, config, std::move(counting), *std::move(weights),
                                         std::move(others));
  }

  void Start(int rows, int draft_len) {
    PaperDevice::SetContext(Context(draft_len));
    bench_->Start(rows, draft_len);
  }

  // The cost of the decode step that follows Start.
  OpCost Cost(int draft_len) {
    device_->StartCounting(Context(draft_len));
    bench_->engine().Submit(bench_->Step(draft_len), 0);
    const OpCost cost = device_->TakeCost();
    bench_->Finish();
    return cost;
  }

  Timing Time(int draft_len, bool overlap, int warm_steps, int timed_steps) {
    std::vector<double> steps;
    std::chrono::steady_clock::time_point start;
    if (overlap) bench_->engine().Submit(bench_->Step(draft_len), 0);
    for (int i = 0; i < warm_steps + timed_steps; ++i) {
      if (i == warm_steps) start = std::chrono::steady_clock::now();
      const double seconds = bench_->Run(draft_len).decode_seconds;
      if (i >= warm_steps) steps.push_back(seconds);
    }
    const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
    if (overlap) bench_->Finish();
    const double busy = std::accumulate(steps.begin(), steps.end(), 0.0);
    std::nth_element(steps.begin(), steps.begin() + timed_steps / 2, steps.end());
    return {.step_seconds = steps[timed_steps / 2],
            .idle_seconds = (wall.count() - busy) / timed_steps,
            .period_seconds = wall.count() / timed_steps};
  }

  // A chunk of as many tokens as the context, on every rank: seconds of the newest of `times`.
  double Prefill(int times) {
    PaperDevice::SetContext(Context(0));
    double seconds = 0;
    for (int i = 0; i < times; ++i) {
      PaperDevice::TakeKernels();
      seconds = bench_->Prefill(1).front();
    }
    return seconds;
  }

  // The predicted time of one step.
  double PaperSeconds(int draft_len) {
    PaperDevice::TakeKernels();
    return bench_->Run(draft_len).decode_seconds;
  }

 private:
  CostContext Context(int draft_len) const {
    return {.context = bench_->context(),
            .rows_per_sequence = draft_len + 1,
            .expert_ranks = expert_ranks_,
            .slowest = slowest_};
  }

  int expert_ranks_ = 1;
  std::shared_ptr<const SlowestRank> slowest_;  // null: all ranks have all experts
  CountingDevice* device_ = nullptr;            // the engine's
  std::unique_ptr<StepBench> bench_;
};

// A setting of the table.
struct Setting {
  int rows;
  int draft_len;
  std::string how;
  auto operator<=>(const Setting&) const = default;
};

class Report {
 public:
  Report(const Options& options, const ModelConfig& config, const std::string& device, const GpuModel* gpu,
         const DeviceRates& rates)
      : config_(config),
        json_(options.json),
        rates_(rates),
        measured_(options.backend != "paper"),
        markdown_(options.markdown) {
    std::cout << absl::StreamFormat(
        "%s\n%s, rank 0 of %d, context %d, copy %.0f GB/s, BF16 %.0f TFLOPS %s\n\n", device, options.model,
        options.ranks, options.context, rates.bytes_per_second / 1e9, rates.bf16_flops / 1e12,
        measured_ ? "measured" : "assumed");
    json_.Add({{"program", "step_bench"},
               {"device", device},
               {"predicted_for", gpu != nullptr ? gpu->name : ""},
               {"model", options.model},
               {"ranks", options.ranks},
               {"context", options.context},
               {"rates", measured_ ? "measured" : "assumed"},
               {"copy_gb_per_s", rates.bytes_per_second / 1e9},
               {"bf16_tflops", rates.bf16_flops / 1e12}});
  }

  void BeginSteps() const {
    std::cout << absl::StrFormat(LineFormat(), "rows", "K", "how", "overlap", "step us", "period us",
                                 "idle us", "GB", "roofline us", "ratio", "predicted us", "tok/s/row");
    if (markdown_) std::cout << "|---|---|---|---|---|---|---|---|---|---|---|---|\n";
  }

  // `predicted`: seconds, 0 if there is no model of the device.
  void Add(const Setting& setting, bool overlap, const Timing& timing, const OpCost& cost, double predicted) {
    const double roofline = RooflineSeconds(cost, rates_);
    const double tokens = AcceptedLength(config_, setting.draft_len) / timing.period_seconds;
    const auto microseconds = [](double seconds) { return absl::StrFormat("%.1f", seconds * 1e6); };
    const auto if_measured = [this](const std::string& value) { return measured_ ? value : "-"; };
    std::cout << absl::StrFormat(
                     LineFormat(), absl::StrCat(setting.rows), absl::StrCat(setting.draft_len), setting.how,
                     if_measured(overlap ? "on" : "off"), if_measured(microseconds(timing.step_seconds)),
                     if_measured(microseconds(timing.period_seconds)),
                     if_measured(microseconds(timing.idle_seconds)),
                     absl::StrFormat("%.2f", cost.bytes / 1e9), microseconds(roofline),
                     absl::StrFormat("%.2f", timing.step_seconds / roofline),
                     predicted > 0 ? microseconds(predicted) : "-", absl::StrFormat("%.1f", tokens))
              << std::flush;
    nlohmann::ordered_json line = {{"rows", setting.rows}, {"k", setting.draft_len}, {"how", setting.how}};
    if (measured_) {
      line["overlap"] = overlap;
      line["step_us"] = timing.step_seconds * 1e6;
      line["period_us"] = timing.period_seconds * 1e6;
      line["idle_us"] = timing.idle_seconds * 1e6;
    }
    line["roofline_us"] = roofline * 1e6;
    line["gigabytes"] = cost.bytes / 1e9;
    if (predicted > 0) line["predicted_us"] = predicted * 1e6;
    json_.Add(line);
  }

  // Chunks of `prompt` tokens, each computed alone.
  void AddPrefill(int prompt, double seconds, double predicted, const std::vector<PaperKernel>& kernels) {
    const auto microseconds = [](double value) {
      return value > 0 ? absl::StrFormat("%.0f", value * 1e6) : "-";
    };
    std::cout << absl::StreamFormat("prefill, %d tokens: %s us, predicted %s us\n", prompt,
                                    microseconds(measured_ ? seconds : 0), microseconds(predicted));
    nlohmann::ordered_json line = {{"prompt", prompt}};
    if (measured_) line["prefill_us"] = seconds * 1e6;
    if (predicted > 0) line["predicted_us"] = predicted * 1e6;
    json_.Add(line);
    AddKernels({prompt, 0, "eager"}, kernels);
  }

  void AddKernels(const Setting& setting, const std::vector<PaperKernel>& kernels) {
    for (const PaperKernel& kernel : kernels) {
      std::cout << absl::StreamFormat("      %5d x %-22s %10.1f us predicted\n", kernel.launches,
                                      kernel.kernel, kernel.seconds * 1e6);
      json_.Add({{"rows", setting.rows},
                 {"k", setting.draft_len},
                 {"kernel", kernel.kernel},
                 {"launches", kernel.launches},
                 {"predicted_us", kernel.seconds * 1e6}});
    }
  }

 private:
  using Format = absl::ParsedFormat<'s', 's', 's', 's', 's', 's', 's', 's', 's', 's', 's', 's'>;
  const Format& LineFormat() const {
    static const Format text("%5s %3s %-8s %-7s %10s %10s %9s %9s %11s %6s %12s %9s\n");
    static const Format markdown("| %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s | %s |\n");
    return markdown_ ? markdown : text;
  }

  const ModelConfig& config_;
  JsonLines json_;
  const DeviceRates rates_;
  const bool measured_;
  const bool markdown_;
};

class Steps {
 public:
  Steps(const Options& options, const ModelConfig& config, const GpuModel* gpu)
      : options_(options), config_(config), gpu_(gpu) {
    for (const std::string& name : options.how) hows_.push_back({name});
  }

  // The predicted steps and, counted from the same ops, their cost.
  void Predict() {
    for (const How& how : hows_) {
      GpuStep bench(options_, config_, std::make_unique<PaperDevice>(*gpu_, how.branches()), how.graphs());
      ForSettings(how, [&](const Setting& setting) {
        bench.Start(setting.rows, setting.draft_len);
        predicted_[setting] = bench.PaperSeconds(setting.draft_len);
        kernels_[setting] = PaperDevice::TakeKernels();
        costs_[setting] = bench.Cost(setting.draft_len);
      });
    }
  }

  void PrintPredictions(Report& report) {
    for (const How& how : hows_) {
      ForSettings(how, [&](const Setting& setting) {
        const double seconds = predicted_[setting];
        report.Add(setting, false, {.step_seconds = seconds, .period_seconds = seconds}, costs_[setting],
                   seconds);
        if (options_.kernels && how.name == "graph") report.AddKernels(setting, kernels_[setting]);
      });
    }
  }

  void Measure(Report& report) {
    for (const How& how : hows_) {
      auto device = CreateDevice(options_.backend, {.threads = 2, .side_stream = how.branches()});
      CHECK(device.ok()) << device.status().ToString();
      GpuStep bench(options_, config_, *std::move(device), how.graphs());
      ForSettings(how, [&](const Setting& setting) {
        bench.Start(setting.rows, setting.draft_len);
        if (gpu_ == nullptr) costs_[setting] = bench.Cost(setting.draft_len);
        for (const bool overlap : {false, true}) {
          report.Add(setting, overlap,
                     bench.Time(setting.draft_len, overlap, options_.warm_steps(), options_.timed_steps()),
                     costs_[setting], gpu_ != nullptr ? predicted_[setting] : 0);
        }
      });
    }
  }

 private:
  template <class Visit>
  void ForSettings(const How& how, const Visit& visit) const {
    for (const int rows : options_.rows) {
      for (const int draft_len : options_.draft_lens(config_)) visit(Setting{rows, draft_len, how.name});
    }
  }

  const Options& options_;
  const ModelConfig& config_;
  const GpuModel* const gpu_;  // null: no prediction
  std::vector<How> hows_;
  std::map<Setting, double> predicted_;  // seconds
  std::map<Setting, OpCost> costs_;
  std::map<Setting, std::vector<PaperKernel>> kernels_;
};

// One chunk at a time, eager, as prefills run.
void TimePrefills(const Options& options, const ModelConfig& config, const GpuModel* gpu, Report& report) {
  constexpr int kRuns = 4;
  for (const int prompt : options.prompts) {
    Options chunk = options;
    chunk.prompt = chunk.context = prompt;
    chunk.rows = {1};
    double predicted = 0, seconds = 0;
    std::vector<PaperKernel> kernels;
    if (gpu != nullptr) {
      predicted = GpuStep(chunk, config, std::make_unique<PaperDevice>(*gpu, true), false).Prefill(1);
      if (options.kernels) kernels = PaperDevice::TakeKernels();
    }
    if (options.backend != "paper") {
      auto device = CreateDevice(options.backend, {.threads = 2, .side_stream = true});
      CHECK(device.ok()) << device.status().ToString();
      seconds = GpuStep(chunk, config, *std::move(device), false).Prefill(options.quick ? 1 : kRuns);
    }
    report.AddPrefill(prompt, seconds, predicted, kernels);
  }
}

int RunWith(const Options& options, const GpuModel* gpu) {
  auto config = ReadModelConfig(options.model);
  if (!config.ok()) {
    std::cerr << "step_bench: " << config.status().message() << "\n";
    return 1;
  }
  config->n_routed_experts *= options.ranks;
  std::string name;
  DeviceRates rates;
  if (options.backend == "paper") {
    name = PaperDevice(*gpu).name();
    rates = {
        .bytes_per_second = gpu->memory_rate, .bf16_flops = gpu->bf16_flops, .fp8_flops = gpu->fp8_flops};
  } else {
    const auto probe = CreateDevice(options.backend, {.threads = 2});
    if (!probe.ok()) {
      std::cerr << "step_bench: " << probe.status().message() << "\n";
      return 1;
    }
    name = (*probe)->name();
    rates = MeasureRates(**probe, options.quick);
  }
  Report report(options, *config, name, gpu, rates);
  if (options.only == std::vector<std::string>{"prefill"}) {
    TimePrefills(options, *config, gpu, report);
    return 0;
  }
  report.BeginSteps();
  Steps steps(options, *config, gpu);
  if (gpu != nullptr) steps.Predict();
  options.backend == "paper" ? steps.PrintPredictions(report) : steps.Measure(report);
  return 0;
}

int Run(const Options& options, const GpuModel* gpu) {
  if (gpu == nullptr) {
    const auto device = CreateDevice(options.backend, {.threads = 2});
    if (device.ok()) gpu = FindGpuModel((*device)->name());
  }
  if (options.measured.empty() || gpu == nullptr) return RunWith(options, gpu);
  const absl::StatusOr<GpuModel> measured = WithMeasured(*gpu, options.measured);
  if (!measured.ok()) {
    std::cerr << "step_bench: --measured: " << measured.status().message() << "\n";
    return 2;
  }
  return RunWith(options, &*measured);
}

bool Allowed(const Options& options) {
  if (options.ranks > 8 || (options.ranks & (options.ranks - 1)) != 0) {
    std::cerr << "step_bench: --ranks: " << options.ranks << ", allowed 1, 2, 4, 8\n";
    return false;
  }
  if (options.attention_tp != 1 && options.attention_tp != options.ranks) {
    std::cerr << "step_bench: --attention-tp: " << options.attention_tp << ", allowed 1, " << options.ranks
              << "\n";
    return false;
  }
  if (options.moe_tp < 1 || options.attention_tp % options.moe_tp != 0) {
    std::cerr << "step_bench: --moe-tp: " << options.moe_tp << ", allowed a divisor of --attention-tp\n";
    return false;
  }
  if (!std::is_sorted(options.rows.begin(), options.rows.end())) {
    std::cerr << "step_bench: --rows: not ascending\n";
    return false;
  }
  if ((options.nccl || options.windows) && options.backend != "paper") {
    std::cerr << "step_bench: --nccl, --windows: only with --backend paper\n";
    return false;
  }
  for (const std::string& how : options.how) {
    if (how == "eager" || how == "graph" || how == "unforked") continue;
    std::cerr << "step_bench: --how: " << how << ", allowed eager, graph, unforked\n";
    return false;
  }
  if (!options.gpu.empty() && FindGpuModel(options.gpu) == nullptr) {
    std::cerr << "step_bench: --gpu " << options.gpu << ": unknown, allowed h200, h100\n";
    return false;
  }
  return true;
}

}  // namespace

int RunGpuSteps(StepOptions given) {
  constexpr const char* kR1Share = "deploy/configs/r1-shape-61x32.json";
  Options options{std::move(given)};
  if (options.model.empty()) options.model = kR1Share;
  if (options.rows.empty()) options.rows = {1, 4, 8, 32, 128};
  if (options.context == 0) options.context = 4096;
  if (options.ranks == 0) options.ranks = options.model == kR1Share ? 8 : 1;
  if (options.backend == "paper" && options.gpu.empty()) options.gpu = "h200";
  if (!Allowed(options)) return 2;
  return Run(options, FindGpuModel(options.gpu));
}

}  // namespace foredraft
