#include "tests/bench/step_meter.h"

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "base/check.h"
#include "engine/checkpoint/dummy_weights.h"
#include "engine/model/draft_head.h"
#include "engine/model_weights.h"
#include "engine/spec/eagle3/eagle3_drafter.h"

namespace foredraft {
namespace {

constexpr int kWarmSteps = 2;
constexpr int kMinTimedSteps = 3;
constexpr int kMaxTimedSteps = 16;
constexpr double kRoundSeconds = 0.15;  // of the timed steps of one setting
constexpr int kMinPrefillTokens = 512;

double SecondsSince(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

std::unique_ptr<Device> MakeCpuDevice(const DeviceOptions& options) {
  auto device = CreateDevice("cpu", options);
  CHECK(device.ok()) << device.status().ToString();
  return *std::move(device);
}

absl::StatusOr<BenchModel> MakeBenchModel(const std::string& checkpoint_dir, const ModelConfig& config,
                                          const DeviceOptions& device) {
  BenchModel model{.config = config, .device = MakeCpuDevice(device)};
  const auto stream = model.device->CreateStream();
  const bool has_head = config.draft_head != nullptr;
  const int modules = has_head ? 0 : config.num_nextn_predict_layers;
  auto weights = checkpoint_dir.empty()
                     ? MakeDummyWeights(config, modules, *model.device, *stream, {})
                     : LoadWeights(checkpoint_dir, config, modules, *model.device, *stream, {});
  if (!weights.ok()) return weights.status();
  model.weights = *std::move(weights);
  if (!has_head) return model;
  auto head = absl::EndsWith(config.draft_head->dir, ".json")
                  ? MakeDummyWeights(kEagle3.describe(config), *model.device, *stream, {})
                  : kEagle3.load(config, *model.device, *stream);
  if (!head.ok()) return head.status();
  model.weights.SetDrafter(*std::move(head));
  return model;
}

StepMeter::StepMeter(const Options& options, const BenchModel& model)
    : config_(model.config), vocab_size_(model.config.vocab_size) {
  StepBenchOptions step{.context = options.context,
                        .max_rows = options.rows.back(),
                        .batch_sizes = options.rows,
                        .max_draft_len = options.max_draft_len,
                        .tokens_per_block = kCpuTokensPerBlock,
                        .max_num_tokens = std::max(options.context, kMinPrefillTokens),
                        .max_steps = kWarmSteps + kMaxTimedSteps + 2,
                        .kv_format = options.kv_format};
  auto counting = std::make_unique<CountingDevice>(MakeCpuDevice(options.device));
  counting_ = counting.get();
  bench_ = std::make_unique<StepBench>(step, model.config, std::move(counting), model.weights);
  bench_->Prefill();
}

void StepMeter::Round(const StepSetting& setting, CpuRates& rates, MeasuredSteps& measured) {
  const int steps = StepsOfRound(setting);
  const std::vector<OpTallies>& costs = CostsOf(setting, steps);
  const DeviceRates before = rates.Measure();
  bench_->Start(setting.rows, setting.draft_len);
  for (int i = 0; i < kWarmSteps; ++i) bench_->Run(setting.draft_len);
  double seconds = 0;
  for (int i = 0; i < steps; ++i) {
    measured.step_seconds.push_back(TimedStep(setting.draft_len));
    seconds += measured.step_seconds.back();
  }
  const DeviceRates around = CpuRates::Mean(before, rates.Measure());
  OpCost moved;
  double bound = 0;
  for (int i = 0; i < steps; ++i) {
    bound += BoundSeconds(costs[i], around);
    for (const OpTally& tally : costs[i]) moved += tally.cost;
  }
  measured.bandwidths.push_back(around.bytes_per_second);
  measured.product_rates.push_back(around.bf16_flops);
  measured.rates.push_back(moved.stored_bytes / seconds);
  measured.shares.push_back(measured.rates.back() / around.bytes_per_second);
  measured.bounds.push_back(bound / steps);
  measured.over_bounds.push_back(seconds / bound);
  measured.step_bytes = moved.stored_bytes / steps;
  measured.step_flops = (moved.bf16_flops + moved.fp8_flops) / steps;
}

std::vector<StepMeter::TalliedStep> StepMeter::TallySteps(const StepSetting& setting, int steps) {
  CHECK_LE(steps, kMaxTimedSteps);
  bench_->Start(setting.rows, setting.draft_len);
  for (int i = 0; i < kWarmSteps; ++i) bench_->Run(setting.draft_len);
  std::vector<TalliedStep> tallied(steps);
  for (int i = 0; i < steps; ++i) {
    StartCounting(setting, i);
    const auto start = std::chrono::steady_clock::now();
    bench_->Run(setting.draft_len);
    tallied[i].seconds = SecondsSince(start);
    tallied[i].ops = counting_->TakeTallies();
  }
  std::sort(tallied.begin(), tallied.end(),
            [](const TalliedStep& a, const TalliedStep& b) { return a.seconds < b.seconds; });
  return tallied;
}

double StepMeter::TimedStep(int draft_len) {
  const auto start = std::chrono::steady_clock::now();
  const RankResult result = bench_->Run(draft_len);
  CHECK(result.replayed);
  return SecondsSince(start);
}

int StepMeter::StepsOfRound(const StepSetting& setting) {
  const auto [found, fresh] = steps_.try_emplace({setting.rows, setting.draft_len}, 0);
  if (fresh) {
    bench_->Start(setting.rows, setting.draft_len);
    bench_->Run(setting.draft_len);
    found->second = std::clamp(static_cast<int>(kRoundSeconds / TimedStep(setting.draft_len)), kMinTimedSteps,
                               kMaxTimedSteps);
  }
  return found->second;
}

const std::vector<OpTallies>& StepMeter::CostsOf(const StepSetting& setting, int steps) {
  std::vector<OpTallies>& costs = costs_[{setting.rows, setting.draft_len}];
  if (!costs.empty()) return costs;
  std::vector<RankResult> counted;
  bench_->Start(setting.rows, setting.draft_len);
  for (int i = 0; i < kWarmSteps + steps; ++i) {
    if (i >= kWarmSteps) StartCounting(setting, i - kWarmSteps);
    counted.push_back(bench_->Run(setting.draft_len));
    if (i >= kWarmSteps) costs.push_back(counting_->TakeTallies());
  }
  bench_->Start(setting.rows, setting.draft_len);
  for (const RankResult& before : counted) {
    const RankResult again = bench_->Run(setting.draft_len);
    for (int slot = 0; slot < setting.rows; ++slot) {
      CHECK(again.slots[slot].token_ids == before.slots[slot].token_ids)
          << "tokens differ from those of the counted steps";
    }
  }
  return costs;
}

void StepMeter::StartCounting(const StepSetting& setting, int step) {
  const double tokens = (kWarmSteps + step + 1) * AcceptedLength(config_, setting.draft_len);
  counting_->StartCounting({.context = bench_->context() + static_cast<int>(tokens),
                            .rows_per_sequence = setting.draft_len + 1,
                            .host_arrays = true},
                           vocab_size_);
}

}  // namespace foredraft
