#ifndef FOREDRAFT_KERNELS_CPU_RANDOM_WEIGHT_H_
#define FOREDRAFT_KERNELS_CPU_RANDOM_WEIGHT_H_

#include <cstdint>
#include <vector>

#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"
#include "kernels/random_weight.h"

namespace foredraft {

// One random weight in host memory, in a checkpoint's layout.
class RandomHostWeight {
 public:
  RandomHostWeight(const RandomWeight& weight, int item, ThreadPool& pool);
  HostWeight View() const;

 private:
  RandomWeight weight_;
  std::vector<uint8_t> data_;
  std::vector<float> scales_;       // empty unless FP8
  std::vector<bf16> group_scales_;  // empty unless 4 bits
};

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_RANDOM_WEIGHT_H_
