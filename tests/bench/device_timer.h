#ifndef FOREDRAFT_TESTS_BENCH_DEVICE_TIMER_H_
#define FOREDRAFT_TESTS_BENCH_DEVICE_TIMER_H_

#include <functional>

#include "kernels/device.h"

namespace foredraft {

// The median of many times that submit(i) takes on the device, i = 0, 1, ... in a captured sequence long
// enough for the launches to vanish. Calls should differ by i in what they read, where it would otherwise
// stay in a cache.
double MedianSeconds(Device& device, Stream& stream, const std::function<void(int i)>& submit);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_BENCH_DEVICE_TIMER_H_
