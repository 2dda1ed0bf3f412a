#ifndef FOREDRAFT_TESTS_BENCH_OPS_RATES_H_
#define FOREDRAFT_TESTS_BENCH_OPS_RATES_H_

// Rates of a device measured with the backend's own ops, where there is no vendor's library.

namespace foredraft {

class Device;

// Bytes per second of copy_rows over [width, width] floats, counting both directions.
double CopyRateOfOps(Device& device, int width);
// FLOPs per second of a BF16 gemm of edge x edge x edge, random weights and inputs.
double Bf16RateOfOps(Device& device, int edge);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_OPS_RATES_H_
