#pragma once

// Measured rates of the device, and the time of the vendor's library. library_rates_cuda.cc measures the CUDA
// runtime and cuBLASLt; a build without CUDA (library_rates_ops.cc) measures the backend's own ops and has no
// library.

#include <optional>

#include "tests/bench/op_cost.h"

namespace foredraft {

class Device;

// Copies 1 GiB, counting both directions, and multiplies 8192 x 8192 x 8192 random values in BF16 (zeros take
// less power, and so run faster), by the library or, where it is not installed, by the backend's gemm. FP8 is
// assumed to be twice as fast as BF16.
DeviceRates MeasureRates(Device& device, bool small);

// Seconds of out[rows, n] = x[rows, k] weight[n, k]^T, BF16 to FP32, by the algorithm that the library
// prefers for this shape, captured and with weights that are not in a cache. None without a library.
std::optional<double> LibraryGemmSeconds(int rows, int n, int k);

}  // namespace foredraft
