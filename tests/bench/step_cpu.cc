// step_bench on backend cpu: decode steps and prefills of a whole model against the bounds of this machine:
// their time, the bytes they read from memory and the products they compute, and the read bandwidth and the
// rate of BF16 products measured before and after.
//
// Bytes of a step: the weights it reads once per forward (the head once per draft too; only the experts that
// its rows chose), and the keys. They and the products are counted op by op in the steps that are timed.
// Activations stay in caches and are not counted. The bound of a step is the sum over the kinds of ops of the
// longer of its bytes and its products at the measured rates: ops run one after another.

#include <algorithm>
#include <chrono>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "client/measure/summary.h"
#include "client/measure/table.h"
#include "engine/kinds/read_model_config.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/model_config.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "tests/bench/step_meter.h"
#include "tests/bench/step_options.h"

namespace foredraft {
namespace {

constexpr int kMostPlainRows = 8;
constexpr int kTalliedSteps = 15;

struct Options : StepOptions {
  bool Wants(const std::string& section) const {
    return std::find(only.begin(), only.end(), section) != only.end();
  }
  StepMeter::Options Meter(int max_draft_len, const std::vector<int>& step_rows) const {
    return {device(), context, max_draft_len, step_rows, kv_format()};
  }
  DeviceOptions device() const {
    return {.threads = threads, .pin = true, .isa = isa, .int8_inputs = int8_inputs()};
  }
  bool int8_inputs() const {
    CHECK(inputs == "bf16" || inputs == "int8") << "--inputs " << inputs;
    return inputs == "int8";
  }
  KvFormat kv_format() const {
    if (kv == "bf16") return DType::kBF16;
    CHECK(kv == "fp8" || kv == "fp8-products") << "--kv " << kv;
    return {DType::kF8E4M3, kv != "fp8"};
  }
  int most_rows() const { return *std::max_element(rows.begin(), rows.end()); }
};

std::string Ms(const Summary& spread) {
  return absl::StrFormat("%.2f (%.2f-%.2f)", spread.p50 * 1e3, spread.p25 * 1e3, spread.p75 * 1e3);
}

std::string Percent(const Summary& spread) {
  return absl::StrFormat("%.1f%% (%.1f-%.1f)", spread.p50 * 100, spread.p25 * 100, spread.p75 * 100);
}

std::string Times(const Summary& spread) {
  return absl::StrFormat("%.2f (%.2f-%.2f)", spread.p50, spread.p25, spread.p75);
}

struct Report {
  const Options& options;
  CpuRates& rates;
  const ModelConfig& config;
};

// The heading of a section and what it measures.
void Heading(const Options& options, const std::string& title, const std::string& text) {
  std::cout << (options.markdown ? "### " : "") << title << "\n\n";
  if (options.markdown) std::cout << "`" << options.command << "`: ";
  std::cout << text << "\n\n";
}

struct Line {
  std::string name;  // of K
  StepMeter* meter;
  StepSetting setting;
  MeasuredSteps measured;
};

void Rounds(const Report& report, std::vector<Line>& lines) {
  for (int round = 0; round < report.options.rounds; ++round) {
    for (Line& line : lines) line.meter->Round(line.setting, report.rates, line.measured);
  }
}

void PrintSteps(const Report& report, const std::vector<Line>& lines) {
  Heading(report.options, "Decode steps",
          absl::StrFormat("Median and quartiles, %d rounds, settings interleaved, %d positions at the start. "
                          "K \"-\" is a model without its MTP module; K = 0 keeps the module's cache warm. "
                          "Bound: bytes and products of each kind of op at the rates around the step.",
                          report.options.rounds, report.options.context));
  Table table({"rows", "K", "step ms", "bound ms", "over the bound", "MB", "GFLOP", "read GB/s", "GFLOPS",
               "of read bandwidth", "tokens/s"});
  for (const Line& line : lines) {
    const MeasuredSteps& m = line.measured;
    const double tokens = line.setting.rows * AcceptedLength(report.config, line.setting.draft_len);
    table.Add({absl::StrCat(line.setting.rows), line.name, Ms(Summarize(m.step_seconds)),
               absl::StrFormat("%.2f", Summarize(m.bounds).p50 * 1e3), Times(Summarize(m.over_bounds)),
               absl::StrFormat("%.0f", m.step_bytes / 1e6), absl::StrFormat("%.1f", m.step_flops / 1e9),
               absl::StrFormat("%.1f", Summarize(m.bandwidths).p50 / 1e9),
               absl::StrFormat("%.0f", Summarize(m.product_rates).p50 / 1e9), Percent(Summarize(m.shares)),
               absl::StrFormat("%.0f", tokens / Summarize(m.step_seconds).p50)});
  }
  table.Print(report.options.markdown);
}

// The gain of drafts at one row, against a model without its module.
void PrintGain(const Report& report, const std::vector<Line>& lines) {
  Heading(
      report.options, "Drafts, one sequence, forced acceptance",
      "Tokens per second over those without drafts, at the acceptance lengths published for R1's MTP, "
      "V4-Pro's, V4-Pro's DSpark and Kimi-K2.5's Eagle3 head; predicted from the bounds of the steps. Spread "
      "over rounds.");
  Table table({"K", "accepted length", "gain", "predicted", "measured / predicted"});
  const MeasuredSteps& base = lines[0].measured;
  for (const Line& line : lines) {
    const int k = line.setting.draft_len;
    if (line.setting.rows != 1 || k == 0) continue;
    const double length = AcceptedLength(report.config, k);
    const double predicted = length * Summarize(base.bounds).p50 / Summarize(line.measured.bounds).p50;
    std::vector<double> gains, reached;
    const size_t rounds = base.rates.size();
    for (size_t i = 0; i < rounds; ++i) {
      const double base_seconds = base.step_bytes / base.rates[i];
      gains.push_back(length * base_seconds * line.measured.rates[i] / line.measured.step_bytes);
      reached.push_back(gains.back() / predicted);
    }
    table.Add({line.name, absl::StrFormat("%.2f", length), Times(Summarize(gains)),
               absl::StrFormat("%.2f", predicted), Percent(Summarize(reached))});
  }
  table.Print(report.options.markdown);
}

void Steps(const Report& report, const BenchModel& model) {
  const Options& options = report.options;
  const bool drafts = model.config.num_nextn_predict_layers > 0 || model.config.draft_head != nullptr;
  const bool module = drafts && !options.Wants("plain");
  // The model without its module is measured only at few rows, where drafts pay.
  std::vector<int> plain_rows = options.rows;
  if (module) std::erase_if(plain_rows, [](int rows) { return rows > kMostPlainRows; });
  std::optional<StepMeter> plain, mtp;
  const auto make = [&](int max_draft_len, const std::vector<int>& rows, std::optional<StepMeter>& meter) {
    if (rows.empty()) return;
    meter.emplace(options.Meter(max_draft_len, rows), model);
  };
  make(0, plain_rows, plain);
  const std::vector<int> draft_lens = BenchDraftLens(model.config);
  if (module) make(draft_lens.back(), options.rows, mtp);
  std::vector<Line> lines;
  for (const int rows : options.rows) {
    if (plain && rows <= plain_rows.back()) lines.push_back({"-", &*plain, {rows, 0}, {}});
    if (!module) continue;
    for (const int k : draft_lens) lines.push_back({absl::StrCat(k), &*mtp, {rows, k}, {}});
  }
  Rounds(report, lines);
  PrintSteps(report, lines);
  if (module && lines[0].setting.rows == 1) PrintGain(report, lines);
}

// Measures the shape with dense layers only: the cost of more rows when all rows use the same weights.
absl::Status Dense(const Report& report, const ModelConfig& config) {
  const Options& options = report.options;
  ModelConfig dense = config;
  dense.first_k_dense_replace = dense.num_hidden_layers + 1;
  dense.num_nextn_predict_layers = 0;
  dense.draft_head = nullptr;
  const auto model = MakeBenchModel("", dense, options.device());
  if (!model.ok()) return model.status();
  const std::vector<int> rows = {1, 2, 4, 8};
  StepMeter meter(options.Meter(0, rows), *model);
  std::vector<Line> lines;
  for (const int count : rows) lines.push_back({"-", &meter, {count, 0}, {}});
  Rounds(report, lines);
  Heading(options, "Dense layers only",
          "The same shape with every layer dense, no module: a step over a step with one row.");
  Table table({"rows", "step ms", "of read bandwidth", "over 1 row"});
  for (const Line& line : lines) {
    std::vector<double> ratios;
    for (size_t i = 0; i < line.measured.rates.size(); ++i) {
      ratios.push_back(lines[0].measured.rates[i] / line.measured.rates[i] * line.measured.step_bytes /
                       lines[0].measured.step_bytes);
    }
    table.Add({absl::StrCat(line.setting.rows), Ms(Summarize(line.measured.step_seconds)),
               Percent(Summarize(line.measured.shares)), Times(Summarize(ratios))});
  }
  table.Print(options.markdown);
  return absl::OkStatus();
}

// The time of one setting's median step by kind of op; `k` names its drafts.
void AddOps(const Report& report, StepMeter& meter, const StepSetting& setting, const std::string& k,
            Table& table) {
  const DeviceRates before = report.rates.Measure();
  const std::vector<StepMeter::TalliedStep> steps = meter.TallySteps(setting, kTalliedSteps);
  const DeviceRates rates = CpuRates::Mean(before, report.rates.Measure());
  const StepMeter::TalliedStep& step = steps[steps.size() / 2];
  const auto us = [](double seconds) { return absl::StrFormat("%.0f", seconds * 1e6); };
  const auto line = [&](const char* kind, const OpTally& tally, const std::string& time, double bound) {
    const double bytes = tally.cost.stored_bytes;
    const double flops = tally.cost.bf16_flops + tally.cost.fp8_flops;
    table.Add(
        {absl::StrCat(setting.rows), k, kind, absl::StrCat(tally.calls), time,
         absl::StrFormat("%.1f%%", 100 * tally.seconds / step.seconds), absl::StrFormat("%.1f", bytes / 1e6),
         flops > 0 ? absl::StrFormat("%.0f", flops / tally.seconds / 1e9) : "",
         bytes > 0 ? absl::StrFormat("%.0f%%", 100 * bytes / tally.seconds / rates.bytes_per_second) : "",
         bound > 0 ? absl::StrFormat("%.2f", tally.seconds / bound) : ""});
  };
  OpTally all{.seconds = step.seconds};
  OpTally between{.seconds = step.seconds};
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    const OpTally& tally = step.ops[kind];
    if (tally.calls == 0) continue;
    line(OpKindName(static_cast<OpKind>(kind)), tally, us(tally.seconds), BoundSeconds({tally}, rates));
    between.seconds -= tally.seconds;
    all.calls += tally.calls;
    all.cost += tally.cost;
  }
  line("between", between, us(between.seconds), 0);
  line("step", all,
       absl::StrCat(us(step.seconds), " (", us(steps[steps.size() / 4].seconds), "-",
                    us(steps[steps.size() * 3 / 4].seconds), ")"),
       BoundSeconds(step.ops, rates));
}

void Ops(const Report& report, const BenchModel& model) {
  const Options& options = report.options;
  std::vector<int> rows;
  for (const int count : {1, 4, 8}) {
    if (count <= options.most_rows()) rows.push_back(count);
  }
  Heading(
      options, "Time by kind of op",
      absl::StrFormat("The step of median length among %d steps, run op by op with a clock around each op; "
                      "with quartiles. Between: the rest of the step. MB of weights and keys.",
                      kTalliedSteps));
  Table table(
      {"rows", "K", "kind", "calls", "us", "of step", "MB", "GFLOPS", "of read bandwidth", "over the bound"});
  StepMeter plain(options.Meter(0, rows), model);
  for (const int count : rows) AddOps(report, plain, {count, 0}, "-", table);
  if (model.config.num_nextn_predict_layers > 0) {
    const int draft_len = BenchDraftLens(model.config).back();
    StepMeter mtp(options.Meter(draft_len, {1}), model);
    AddOps(report, mtp, {1, draft_len}, absl::StrCat(draft_len), table);
  }
  table.Print(options.markdown);
}

void Prefill(const Report& report, const BenchModel& model) {
  const Options& options = report.options;
  Heading(options, "Prefill", "One prompt, one chunk, without the module and the head. Bound: as of a step.");
  Table table({"tokens", "tokens/s", "at the bound", "over the bound", "GFLOP of attention", "GFLOP in all"});
  for (const int length : options.prompts) {
    auto counting_device = std::make_unique<CountingDevice>(MakeCpuDevice(options.device()));
    CountingDevice& counting = *counting_device;
    StepBench bench({.context = length,
                     .max_rows = options.rounds + 1,
                     .batch_sizes = {options.rounds + 1},
                     .max_draft_len = 0,
                     .tokens_per_block = kCpuTokensPerBlock,
                     .max_num_tokens = length,
                     .max_steps = 1,
                     .graphs = false},
                    model.config, std::move(counting_device), model.weights);
    const DeviceRates before = report.rates.Measure();
    std::vector<double> seconds = bench.Prefill();
    const DeviceRates rates = CpuRates::Mean(before, report.rates.Measure());
    seconds.erase(seconds.begin());  // touches its memory for the first time
    // Half of the prompt is what a row attends on average.
    counting.StartCounting(
        {.context = bench.context() / 2, .rows_per_sequence = bench.context(), .host_arrays = true},
        model.config.vocab_size);
    bench.Prefill(1);
    const OpTallies tallies = counting.TakeTallies();
    OpCost all;
    for (const OpTally& tally : tallies) all += tally.cost;
    const double bound = BoundSeconds(tallies, rates);
    std::vector<double> speeds, over;
    for (const double s : seconds) {
      speeds.push_back(bench.context() / s);
      over.push_back(s / bound);
    }
    const Summary speed = Summarize(speeds);
    const double attention = tallies[static_cast<int>(OpKind::kAttention)].cost.bf16_flops;
    table.Add({absl::StrCat(bench.context()),
               absl::StrFormat("%.0f (%.0f-%.0f)", speed.p50, speed.p25, speed.p75),
               absl::StrFormat("%.0f", bench.context() / bound), Times(Summarize(over)),
               absl::StrFormat("%.1f", attention / 1e9),
               absl::StrFormat("%.1f", (all.bf16_flops + all.fp8_flops) / 1e9)});
  }
  table.Print(options.markdown);
}

// "MODEL" or "MODEL+HEAD", each a checkpoint or a config.json.
absl::StatusOr<ModelConfig> ReadConfig(const std::string& model, const std::string& head) {
  ASSIGN_OR_RETURN(ModelConfig config,
                   ReadModelConfig(absl::EndsWith(model, ".json") ? model : model + "/config.json"));
  if (head.empty()) return config;
  Config of_head;
  if (absl::EndsWith(head, ".json")) of_head.load_format = LoadFormat::kDummy;
  of_head.speculative_config.emplace().speculative_model = head;
  RETURN_IF_ERROR(kEagle3.read(of_head, config));
  return config;
}

absl::Status Run(const Options& options) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(options.model, absl::MaxSplits('+', 1));
  const bool checkpoint = !absl::EndsWith(parts.first, ".json");
  const auto config = ReadConfig(parts.first, parts.second);
  if (!config.ok()) return config.status();
  CpuRates rates(options.device(), size_t(options.buffer_mb) << 20);
  const Report report{options, rates, *config};
  {
    const auto model = MakeBenchModel(checkpoint ? parts.first : "", *config, options.device());
    if (!model.ok()) return model.status();
    std::vector<double> bandwidths, dots;
    for (int i = 0; i < options.rounds; ++i) {
      const DeviceRates measured = rates.Measure();
      bandwidths.push_back(measured.bytes_per_second / 1e9);
      dots.push_back(measured.bf16_flops / 1e9);
    }
    const Summary bandwidth = Summarize(bandwidths), dot = Summarize(dots);
    std::cout << absl::StreamFormat(
        "%s, %s, %d threads%s; read bandwidth %.1f GB/s (%.1f-%.1f): %d streams a thread, prefetch %d bytes "
        "ahead, a buffer of %d MB; BF16 products %.0f GFLOPS (%.0f-%.0f)\n\n",
        options.model, model->device->name(), options.threads,
        absl::StrCat(options.kv == "bf16" ? "" : absl::StrCat(", KV ", KvFormatName(options.kv_format())),
                     options.int8_inputs() ? ", inputs in 8 bits" : ""),
        bandwidth.p50, bandwidth.p25, bandwidth.p75, rates.way().streams, rates.way().prefetch_bytes,
        options.buffer_mb, dot.p50, dot.p25, dot.p75);
    if (options.Wants("ops")) Ops(report, *model);
    if (options.Wants("table") || options.Wants("plain")) Steps(report, *model);
    if (options.Wants("prefill")) Prefill(report, *model);
  }
  return options.Wants("dense") && FindV4Shape(*config) == nullptr ? Dense(report, *config)
                                                                   : absl::OkStatus();
}

}  // namespace

int RunCpuSteps(StepOptions given) {
  Options options{std::move(given)};
  if (options.model.empty()) options.model = "deploy/configs/yardstick.json";
  if (options.rows.empty()) options.rows = {1, 2, 4, 8, 16, 32, 64};
  if (options.context == 0) options.context = 128;
  std::sort(options.rows.begin(), options.rows.end());
  const absl::Status status = Run(options);
  if (!status.ok()) std::cerr << "step_bench: " << status.message() << "\n";
  return status.ok() ? 0 : 1;
}

}  // namespace foredraft
