#pragma once

// Several dot products side by side, each with the bits of LaneSum (vector_math.h). One sum alone waits for
// its own last addition; four hide each other's latency and share the loads of x. Always inlined, to be
// compiled for the caller's register width (vector_math.h).

#include <cstdint>
#include <cstring>

namespace foredraft {

// The sums of the 16 lanes of each of four vectors, added in LaneSum's order: lane i + lane i + 8, then 4, 2
// and 1. From halves of 8 lanes on, the four sums share their additions.
[[gnu::always_inline]] inline void AddLanes(const float (*lanes)[16], float* sums) {
  typedef float Half __attribute__((vector_size(8 * sizeof(float))));
  typedef float Quarter __attribute__((vector_size(4 * sizeof(float))));
  Quarter q[4];
  for (int s = 0; s < 4; ++s) {
    Half low, high;
    std::memcpy(&low, lanes[s], sizeof low);
    std::memcpy(&high, lanes[s] + 8, sizeof high);
    low += high;
    Quarter first, second;
    std::memcpy(&first, &low, sizeof first);
    std::memcpy(&second, reinterpret_cast<const char*>(&low) + sizeof first, sizeof second);
    q[s] = first + second;
  }
  const Quarter a =
      __builtin_shufflevector(q[0], q[1], 0, 1, 4, 5) + __builtin_shufflevector(q[0], q[1], 2, 3, 6, 7);
  const Quarter b =
      __builtin_shufflevector(q[2], q[3], 0, 1, 4, 5) + __builtin_shufflevector(q[2], q[3], 2, 3, 6, 7);
  const Quarter all = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
  std::memcpy(sums, &all, sizeof all);
}

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
  float lanes[kSums][kLanes];
  std::memcpy(lanes, sums, sizeof lanes);
  for (int s = 0; s < kSums; ++s) {
    for (int lane = 0; i + lane < count; ++lane) lanes[s][lane] += x[i + lane] * y[s * stride + i + lane];
  }
  if constexpr (kSums == 4) {
    AddLanes(lanes, dots);
  } else {
    for (int s = 0; s < kSums; ++s) {
      for (int half = kLanes / 2; half > 0; half /= 2) {
        for (int lane = 0; lane < half; ++lane) lanes[s][lane] += lanes[s][lane + half];
      }
      dots[s] = lanes[s][0];
    }
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
