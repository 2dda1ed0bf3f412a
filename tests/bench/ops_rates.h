#pragma once

// Rates of a device measured with the backend's own ops, where there is no vendor's library.

#include <memory>

#include "kernels/device.h"

namespace foredraft {

// Bytes per second of copy_rows over [width, width] floats, counting both directions.
double CopyRateOfOps(Device& device, int width);
// FLOPs per second of a BF16 gemm of edge x edge x edge, random weights and inputs.
double Bf16RateOfOps(Device& device, int edge);

// The rate of BF16 products on the CPU, whose ops return when they have run: of the faster of gemm and
// mla_prefill, whose operands stay in the caches.
class Bf16ProductRate {
 public:
  explicit Bf16ProductRate(Device& device);  // outlives this object

  // FLOPs per second of the fastest of some runs, so that a short disturbance does not count.
  double Measure();

 private:
  Device& device_;
  std::unique_ptr<Stream> stream_;
  GemmParams gemm_;
  MlaPrefillParams attention_;
};

}  // namespace foredraft
