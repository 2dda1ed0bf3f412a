#ifndef FOREDRAFT_KERNELS_CPU_LANE_SUMS_H_
#define FOREDRAFT_KERNELS_CPU_LANE_SUMS_H_

// Several dot products side by side, each with the bits of LaneSum (vector_math.h). One sum alone waits for
// its own last addition; four hide each other's latency and share the loads of x. Always inlined, to be
// compiled for the caller's register width (wide.h).

#include <cstdint>
#include <cstring>

namespace foredraft {

// dots[s] = x · (y + s * stride), [0, count).
template <int kSums>
[[gnu::always_inline]] inline void DotProducts(const float* x, const float* y, int64_t stride, int64_t count,
                                               float* dots) {
  constexpr int kLanes = 16;
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  Lanes sums[kSums] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes a, b;
    std::memcpy(&a, x + i, sizeof a);
    for (int s = 0; s < kSums; ++s) {
      std::memcpy(&b, y + s * stride + i, sizeof b);
      sums[s] += a * b;
    }
  }
  for (int s = 0; s < kSums; ++s) {
    float lanes[kLanes];
    std::memcpy(lanes, &sums[s], sizeof lanes);
    for (int lane = 0; i + lane < count; ++lane) lanes[lane] += x[i + lane] * y[s * stride + i + lane];
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
    }
    dots[s] = lanes[0];
  }
}

// out += weights[s] * (y + s * stride), [0, count), in ascending order of s: out is read and written once.
template <int kSums>
[[gnu::always_inline]] inline void AddScaled(const float* weights, const float* y, int64_t stride,
                                             int64_t count, float* out) {
  constexpr int kLanes = 16;
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes sum, b;
    std::memcpy(&sum, out + i, sizeof sum);
    for (int s = 0; s < kSums; ++s) {
      std::memcpy(&b, y + s * stride + i, sizeof b);
      sum += weights[s] * b;
    }
    std::memcpy(out + i, &sum, sizeof sum);
  }
  for (; i < count; ++i) {
    for (int s = 0; s < kSums; ++s) out[i] += weights[s] * y[s * stride + i];
  }
}

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CPU_LANE_SUMS_H_
