#include "tests/bench/launch_model.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "nlohmann/json.hpp"

namespace foredraft {
namespace {

// Rates: a device-to-device copy and an 8192 x 8192 x 8192 product of random data, as reported for such
// cards; FP8 at twice BF16. A multiprocessor takes 64 bytes a clock from L2. The latencies are estimates, and
// so is the exchange: NCCL over NVLink between eight ranks.
const GpuModel kModels[] = {{.name = "h200",
                             .multiprocessors = 132,
                             .memory_rate = 4.3e12,
                             .multiprocessor_rate = 100e9,
                             .bf16_flops = 790e12,
                             .fp8_flops = 1580e12,
                             .clock = 1.75e9,
                             .memory_latency = 0.9e-6,
                             .follow_seconds = 0.9e-6,
                             .edge_seconds = 2.1e-6,
                             .host_seconds = 3e-6,
                             .exchange_seconds = 15e-6,
                             .window_seconds = 2.5e-6,
                             .link_rate = 350e9},
                            {.name = "h100",
                             .multiprocessors = 132,
                             .memory_rate = 3.0e12,
                             .multiprocessor_rate = 100e9,
                             .bf16_flops = 790e12,
                             .fp8_flops = 1580e12,
                             .clock = 1.75e9,
                             .memory_latency = 0.9e-6,
                             .follow_seconds = 0.9e-6,
                             .edge_seconds = 2.1e-6,
                             .host_seconds = 3e-6,
                             .exchange_seconds = 15e-6,
                             .window_seconds = 2.5e-6,
                             .link_rate = 350e9}};

// A wave in which `blocks` blocks have one item each.
double WaveSeconds(const KernelLaunch& launch, const GpuModel& gpu, double blocks) {
  const double shared_by = std::max(1.0, std::ceil(blocks / gpu.multiprocessors));  // of a multiprocessor
  double block_rate = gpu.multiprocessor_rate / shared_by;
  if (launch.in_flight > 0) block_rate = std::min(block_rate, launch.in_flight / gpu.memory_latency);
  const double memory = launch.memory_bytes / launch.items * blocks / gpu.memory_rate;
  const double matrix = (launch.item_bf16_flops / gpu.bf16_flops + launch.item_fp8_flops / gpu.fp8_flops) *
                        gpu.multiprocessors * shared_by / launch.matrix_share;
  return std::max({memory, launch.item_bytes / block_rate, matrix, launch.chain_seconds});
}

}  // namespace

const GpuModel* FindGpuModel(std::string_view name) {
  const std::string lower = absl::AsciiStrToLower(absl::string_view(name.data(), name.size()));
  for (const GpuModel& model : kModels) {
    if (absl::StrContains(lower, model.name)) return &model;
  }
  return nullptr;
}

absl::StatusOr<GpuModel> WithMeasured(const GpuModel& model, const std::string& path) {
  std::ifstream file(path);
  const nlohmann::json measured = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!measured.is_object()) return absl::InvalidArgumentError(path + ": not a JSON object");
  GpuModel own = model;
  const std::map<std::string, std::pair<double*, double>> places = {
      {"follow_us", {&own.follow_seconds, 1e-6}},
      {"edge_us", {&own.edge_seconds, 1e-6}},
      {"multiprocessor_gb_per_s", {&own.multiprocessor_rate, 1e9}}};
  for (const auto& [key, value] : measured.items()) {
    const auto place = places.find(key);
    if (place == places.end()) return absl::InvalidArgumentError(path + ": " + key + ": unknown");
    if (!value.is_number() || value <= 0) {
      return absl::InvalidArgumentError(path + ": " + key + ": not a positive number");
    }
    *place->second.first = value.get<double>() * place->second.second;
  }
  return own;
}

double BlocksAtOnce(const KernelLaunch& launch, const GpuModel& gpu) {
  return std::min(launch.items, double(gpu.multiprocessors) * launch.blocks_per_multiprocessor);
}

double Waves(const KernelLaunch& launch, const GpuModel& gpu) {
  return launch.items / BlocksAtOnce(launch, gpu);
}

double LaunchSeconds(const KernelLaunch& launch, const GpuModel& gpu) {
  if (launch.items <= 0) return launch.fixed_seconds;
  const double blocks = BlocksAtOnce(launch, gpu);
  const double full_waves = std::floor(launch.items / blocks);
  const double rest = launch.items - full_waves * blocks;
  double seconds = launch.fixed_seconds + full_waves * WaveSeconds(launch, gpu, blocks);
  if (rest > 0) seconds += WaveSeconds(launch, gpu, rest);
  return seconds;
}

}  // namespace foredraft
