#ifndef FOREDRAFT_TESTS_BENCH_LIBRARY_RATES_H_
#define FOREDRAFT_TESTS_BENCH_LIBRARY_RATES_H_

// What the device was measured to do, and what the vendor's library needs: library_rates_cuda.cc asks the
// CUDA runtime and cuBLASLt; a build without CUDA (library_rates_ops.cc) asks the backend's own ops and has
// no library.

#include <optional>

#include "tests/bench/op_cost.h"

namespace foredraft {

class Device;

// Copying 1 GiB, both directions counted; a BF16 product of 8192 x 8192 x 8192. FP8 is taken for twice as
// fast.
DeviceRates MeasureRates(Device& device, bool small);

// Seconds of out[rows, n] = x[rows, k] weight[n, k]^T, BF16 to FP32, by the library's own first choice for
// just this shape.
std::optional<double> LibraryGemmSeconds(int rows, int n, int k);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_LIBRARY_RATES_H_
