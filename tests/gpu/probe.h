#pragma once

// What the probes share: small kernels that measure what predictions take for granted about a GPU. Each probe
// prints a line "probe: NAME: VALUE UNIT, model VALUE", which tests/gpu/run puts into its table.

#include <cstdio>
#include <string>

#include "kernels/cuda/device/cuda_stream.h"
#include "tests/bench/device_timer.h"
#include "tests/bench/launch_model.h"
#include "tests/ops/op_rig.h"

namespace foredraft::cuda {

inline const GpuModel& Model(const Device& device) {
  const GpuModel* const model = FindGpuModel(device.name());
  return model != nullptr ? *model : *FindGpuModel("h200");
}

inline bool IsEmulated(const Device& device) { return device.name().find("NVIDIA") == std::string::npos; }

inline void Print(const std::string& name, double value, const char* unit, double model) {
  std::printf("probe: %s: %.4f %s, model %.4f\n", name.c_str(), value, unit, model);
  EXPECT_GT(value, 0);
}

// One launch of `shape`.
template <class Params>
double SecondsOf(OpRig& rig, void (*kernel)(Params), const LaunchShape& shape, const Params& params,
                 int max_calls) {
  return MedianSeconds(rig.device(), rig.stream(), [&](int) { Launch(rig.stream(), kernel, shape, params); },
                       {.max_calls = max_calls});
}

// One of `rounds` rounds of a kernel: what it takes before and after them is left out. Four times the rounds
// take longer than the rounds do, also where other work on the machine disturbs the emulation.
template <class Params>
double SecondsOfRound(OpRig& rig, void (*kernel)(Params), const LaunchShape& shape, Params params,
                      int32_t rounds) {
  const auto seconds = [&](int32_t count) {
    params.rounds = count;
    return SecondsOf(rig, kernel, shape, params, /*max_calls=*/1);
  };
  return (seconds(4 * rounds) - seconds(rounds)) / (3 * rounds);
}

// A block of this many threads.
inline LaunchShape OneBlock(unsigned threads) { return {.grid = dim3(1), .block = dim3(threads)}; }

}  // namespace foredraft::cuda
