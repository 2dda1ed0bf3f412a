#include "base/check.h"
#include "tests/bench/device_timer.h"
#include "tests/bench/library_rates.h"

namespace foredraft {

DeviceRates MeasureRates(Device& device, bool small) {
  const auto stream = device.CreateStream();
  const int width = small ? 1 << 8 : 1 << 14;
  const Matrix<float> from = Dense(*device.AllocateArray<float>(size_t(width) * width), width, width);
  const Matrix<float> to = Dense(*device.AllocateArray<float>(size_t(width) * width), width, width);
  const CopyRowsParams copy = {.out = to, .x = from, .rows = width};
  const double copy_seconds =
      MedianSeconds(device, *stream, [&](int) { device.ops().copy_rows(*stream, copy); });
  const int edge = width / 2;
  const auto weight = device.MakeRandomWeights(1, DenseRandomWeight(edge, edge, DType::kBF16, 1.0f, 1));
  CHECK(weight.ok()) << weight.status().ToString();
  const GemmParams gemm = {
      .out = Dense(to.data, edge, edge),
      .x = Dense<const bf16>(*device.AllocateArray<bf16>(size_t(edge) * edge), edge, edge),
      .weight = weight->first};
  const double gemm_seconds = MedianSeconds(device, *stream, [&](int) { device.ops().gemm(*stream, gemm); });
  const double rate = 2.0 * edge * edge * edge / gemm_seconds;
  return {.bytes_per_second = 2.0 * sizeof(float) * width * width / copy_seconds,
          .bf16_flops = rate,
          .fp8_flops = 2 * rate};
}

std::optional<double> LibraryGemmSeconds(int, int, int) { return std::nullopt; }

}  // namespace foredraft
