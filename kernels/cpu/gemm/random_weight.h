#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/device/thread_pool.h"
#include "kernels/device.h"
#include "kernels/random_weight.h"

namespace foredraft {

// One random weight at a time in host memory, in a checkpoint's layout.
class RandomHostWeight {
 public:
  explicit RandomHostWeight(const RandomWeight& weight);

  // Item `item` of the array. Valid until the next call.
  HostWeight Make(int item, ThreadPool& pool);

 private:
  RandomWeight weight_;
  std::vector<uint8_t> data_;
  std::vector<char> scales_;  // in the format's type
};

}  // namespace foredraft
