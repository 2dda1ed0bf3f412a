#pragma once

// Times decode steps on backend cpu, and counts the bytes and products of the same steps: from the same
// start, an engine repeats its tokens, and with them the experts that its rows choose. Timed steps are
// replays; counted ones run the recorded ops one by one.

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/kv_row.h"
#include "tests/bench/counting_device.h"
#include "tests/bench/cpu_rates.h"
#include "tests/bench/step_bench.h"

namespace foredraft {

inline constexpr int kCpuTokensPerBlock = 32;

// Weights and the device that holds them.
struct BenchModel {
  ModelConfig config;
  std::unique_ptr<Device> device;
  LoadedWeights weights;
};
// A checkpoint's, or random ones of that shape where `checkpoint_dir` is empty; those of config.draft_head,
// whose `dir` is a directory or a config.json, likewise.
absl::StatusOr<BenchModel> MakeBenchModel(const std::string& checkpoint_dir, const ModelConfig& config,
                                          const DeviceOptions& device);

struct StepSetting {
  int rows = 1;
  int draft_len = 0;
};

// What was measured of one setting, by rounds.
struct MeasuredSteps {
  std::vector<double> step_seconds;   // of each step of all rounds
  std::vector<double> rates;          // bytes of the round's steps over their time
  std::vector<double> bandwidths;     // read bandwidth around its steps
  std::vector<double> product_rates;  // FLOPs per second of BF16 products around its steps
  std::vector<double> shares;         // rate over bandwidth
  std::vector<double> bounds;         // BoundSeconds of a step at these rates
  std::vector<double> over_bounds;    // time of the round's steps over their bound
  double step_bytes = 0;              // mean
  double step_flops = 0;              // mean
};

class StepMeter {
 public:
  struct Options {
    DeviceOptions device;  // that steps run on
    int context = 128;
    int max_draft_len = 0;  // 0: no module
    std::vector<int> rows;  // ascending
    KvFormat kv_format = DType::kBF16;
  };
  // `model` must outlive this object.
  StepMeter(const Options& options, const BenchModel& model);

  // One round: the steps, with a measurement of the machine's rates before and after.
  void Round(const StepSetting& setting, CpuRates& rates, MeasuredSteps& measured);

  // A step run op by op.
  struct TalliedStep {
    double seconds = 0;  // of the whole step
    OpTallies ops{};
  };
  // Runs `steps` steps op by op; returns the shortest first. Disturbances by other processes are in the last.
  std::vector<TalliedStep> TallySteps(const StepSetting& setting, int steps);

 private:
  double TimedStep(int draft_len);
  int StepsOfRound(const StepSetting& setting);
  const std::vector<OpTallies>& CostsOf(const StepSetting& setting, int steps);
  void StartCounting(const StepSetting& setting, int step);

  const ModelConfig config_;
  const int vocab_size_;
  CountingDevice* counting_ = nullptr;  // of bench_
  std::unique_ptr<StepBench> bench_;
  std::map<std::pair<int, int>, int> steps_;  // of a round, by rows and K
  // The tallies of each step, by rows and K: rounds repeat them.
  std::map<std::pair<int, int>, std::vector<OpTallies>> costs_;
};

}  // namespace foredraft
