#include "tests/bench/ops_rates.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "base/check.h"
#include "tests/bench/device_timer.h"
#include "tests/bench/op_cost.h"

namespace foredraft {

double CopyRateOfOps(Device& device, int width) {
  const auto stream = device.CreateStream();
  const Matrix<float> from = Dense(*device.AllocateArray<float>(size_t(width) * width), width, width);
  const Matrix<float> to = Dense(*device.AllocateArray<float>(size_t(width) * width), width, width);
  const CopyRowsParams copy = {.out = to, .x = from, .rows = width};
  const double seconds = MedianSeconds(device, *stream, [&](int) { device.ops().copy_rows(*stream, copy); });
  return 2.0 * sizeof(float) * width * width / seconds;
}

double Bf16RateOfOps(Device& device, int edge) {
  const auto stream = device.CreateStream();
  const auto weight = device.MakeRandomWeights(1, DenseRandomWeight(edge, edge, kBf16Format, 1.0f, 1));
  CHECK(weight.ok()) << weight.status().ToString();
  const auto x = device.MakeRandomWeights(1, DenseRandomWeight(edge, edge, kBf16Format, 1.0f, 2));
  CHECK(x.ok()) << x.status().ToString();
  // A CPU packs weights in its own layout: there these are some BF16 values.
  const GemmParams gemm = {.out = Dense(*device.AllocateArray<float>(size_t(edge) * edge), edge, edge),
                           .x = Dense(static_cast<const bf16*>(x->first.data), edge, edge),
                           .weight = weight->first};
  const double seconds = MedianSeconds(device, *stream, [&](int) { device.ops().gemm(*stream, gemm); });
  return 2.0 * edge * edge * edge / seconds;
}

Bf16ProductRate::Bf16ProductRate(Device& device) : device_(device), stream_(device.CreateStream()) {
  constexpr int kRows = 192, kOutputs = 1024, kInputs = 512;  // 1 MB of weights
  const auto weight = device.MakeRandomWeights(1, DenseRandomWeight(kOutputs, kInputs, kBf16Format, 1.0f, 3));
  CHECK(weight.ok()) << weight.status().ToString();
  const auto zeros = [&](int rows, int cols) {
    return Dense(*device.AllocateArray<bf16>(size_t(rows) * cols), rows, cols);
  };
  gemm_ = {.out = Dense(*device.AllocateArray<float>(size_t{kRows} * kOutputs), kRows, kOutputs),
           .x = zeros(kRows, kInputs),
           .weight = weight->first};
  constexpr int kPositions = 384, kHeads = 4, kNope = 128, kRope = 64, kValue = 128;
  attention_ = {.out = zeros(kPositions, kHeads * kValue),
                .q = zeros(kPositions, kHeads * (kNope + kRope)),
                .kv = zeros(kPositions, kHeads * (kNope + kValue)),
                .k_pe = zeros(kPositions, kRope),
                .chunk_first = 0,
                .first_position = 0,
                .segment_first = 0,
                .head_count = kHeads,
                .nope_dim = kNope,
                .rope_dim = kRope,
                .value_dim = kValue,
                .scale = 0.1f};
}

double Bf16ProductRate::Measure() {
  constexpr int kTrials = 8;
  const auto rate = [](double flops, const auto& run) {
    double seconds = std::numeric_limits<double>::infinity();
    for (int trial = 0; trial < kTrials; ++trial) {
      const auto start = std::chrono::steady_clock::now();
      run();
      const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
      seconds = std::min(seconds, elapsed.count());
    }
    return flops / seconds;
  };
  return std::max(
      rate(CostOf(gemm_).bf16_flops, [&] { device_.ops().gemm(*stream_, gemm_); }),
      rate(CostOf(attention_).bf16_flops, [&] { device_.ops().mla_prefill(*stream_, attention_); }));
}

}  // namespace foredraft
