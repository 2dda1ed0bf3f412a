#ifndef FOREDRAFT_KERNELS_CPU_ARGMAX_H_
#define FOREDRAFT_KERNELS_CPU_ARGMAX_H_

#include <cstdint>
#include <limits>

namespace foredraft::cpu {

// The largest value; NaN is skipped, -infinity if all are NaN. Always inlined, to be compiled for the
// caller's register width (wide.h).
[[gnu::always_inline]] inline float LargestOf(const float* x, int32_t count) {
  constexpr int kLanes = 16;
  float lanes[kLanes];
  for (float& lane : lanes) lane = -std::numeric_limits<float>::infinity();
  int32_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      lanes[lane] = x[i + lane] > lanes[lane] ? x[i + lane] : lanes[lane];
    }
  }
  for (; i < count; ++i) lanes[0] = x[i] > lanes[0] ? x[i] : lanes[0];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      lanes[lane] = lanes[lane + half] > lanes[lane] ? lanes[lane + half] : lanes[lane];
    }
  }
  return lanes[0];
}

// The lowest index of the largest value; 0 if all are NaN.
[[gnu::always_inline]] inline int32_t ArgmaxOf(const float* x, int32_t count) {
  const float largest = LargestOf(x, count);
  for (int32_t i = 0; i < count; ++i) {
    if (x[i] == largest) return i;
  }
  return 0;
}

}  // namespace foredraft::cpu

#endif  // FOREDRAFT_KERNELS_CPU_ARGMAX_H_
