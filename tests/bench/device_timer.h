#pragma once

#include <functional>

#include "kernels/device.h"

namespace foredraft {

// Length of a captured sequence of calls: enough calls for `seconds`, at most `max_calls`.
struct SampleLength {
  double seconds = 2e-3;
  int max_calls = 200;
};

// Median device time of submit(i), i = 0, 1, ..., in a captured sequence that is long enough to hide the cost
// of launches. submit should read different memory for each i if that memory would otherwise stay in a cache.
double MedianSeconds(Device& device, Stream& stream, const std::function<void(int i)>& submit,
                     const SampleLength& length = {});

}  // namespace foredraft
