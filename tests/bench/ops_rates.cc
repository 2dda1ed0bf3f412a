#include "tests/bench/ops_rates.h"

#include "base/check.h"
#include "tests/bench/device_timer.h"

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
  const auto weight = device.MakeRandomWeights(1, DenseRandomWeight(edge, edge, DType::kBF16, 1.0f, 1));
  CHECK(weight.ok()) << weight.status().ToString();
  const auto x = device.MakeRandomWeights(1, DenseRandomWeight(edge, edge, DType::kBF16, 1.0f, 2));
  CHECK(x.ok()) << x.status().ToString();
  // A CPU packs weights in its own layout: there these are some BF16 values.
  const GemmParams gemm = {.out = Dense(*device.AllocateArray<float>(size_t(edge) * edge), edge, edge),
                           .x = Dense(static_cast<const bf16*>(x->first.data), edge, edge),
                           .weight = weight->first};
  const double seconds = MedianSeconds(device, *stream, [&](int) { device.ops().gemm(*stream, gemm); });
  return 2.0 * edge * edge * edge / seconds;
}

}  // namespace foredraft
