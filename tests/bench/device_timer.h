#ifndef FOREDRAFT_TESTS_BENCH_DEVICE_TIMER_H_
#define FOREDRAFT_TESTS_BENCH_DEVICE_TIMER_H_

#include <functional>

#include "kernels/device.h"

namespace foredraft {

// How long a captured sequence of calls is: until `seconds` are full, at most `max_calls`.
struct SampleLength {
  double seconds = 2e-3;
  int max_calls = 200;
};

// The median of many times that submit(i) takes on the device, i = 0, 1, ... in a captured sequence long
// enough for the launches to vanish. Calls should differ by i in what they read, where it would otherwise
// stay in a cache.
double MedianSeconds(Device& device, Stream& stream, const std::function<void(int i)>& submit,
                     const SampleLength& length = {});

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_DEVICE_TIMER_H_
