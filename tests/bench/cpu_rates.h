#pragma once

// The rates of this machine that bound the CPU backend: of reads from memory, and of BF16 products.

#include <memory>

#include "kernels/device.h"
#include "tests/bench/op_cost.h"
#include "tests/bench/ops_rates.h"
#include "tests/bench/read_bandwidth.h"

namespace foredraft {

// Ends the program where the machine lacks what `options` ask for.
std::unique_ptr<Device> MakeCpuDevice(const DeviceOptions& options);

class CpuRates {
 public:
  // `buffer_bytes`: more than the caches hold.
  CpuRates(const DeviceOptions& options, size_t buffer_bytes)
      : bandwidth_(options.threads, buffer_bytes), device_(MakeCpuDevice(options)), products_(*device_) {}

  // Weights of other dtypes are widened to BF16, so their products have the same rate.
  DeviceRates Measure() {
    const double flops = products_.Measure();
    return {.bytes_per_second = bandwidth_.Measure(), .bf16_flops = flops, .fp8_flops = flops};
  }
  // Half-way between rates before and after something.
  static DeviceRates Mean(const DeviceRates& before, const DeviceRates& after) {
    return {.bytes_per_second = (before.bytes_per_second + after.bytes_per_second) / 2,
            .bf16_flops = (before.bf16_flops + after.bf16_flops) / 2,
            .fp8_flops = (before.fp8_flops + after.fp8_flops) / 2};
  }
  const ReadBandwidth::Way& way() const { return bandwidth_.way(); }

 private:
  ReadBandwidth bandwidth_;
  const std::unique_ptr<Device> device_;
  Bf16ProductRate products_;
};

}  // namespace foredraft
