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

// dots[x_s * dots_stride + s] = (x + x_s * count) · (y + s * count), [0, count): kRows rows of x, each with
// four rows of y, which are loaded once for all of them.
template <int kRows>
[[gnu::always_inline]] inline void DotProductsOfRows(const float* x, const float* y, int64_t count,
                                                     float* dots, int64_t dots_stride) {
  constexpr int kLanes = 16, kSums = 4;
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  Lanes sums[kRows][kSums] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes a, b[kSums];
    for (int s = 0; s < kSums; ++s) std::memcpy(&b[s], y + s * count + i, sizeof b[s]);
    for (int row = 0; row < kRows; ++row) {
      std::memcpy(&a, x + row * count + i, sizeof a);
      for (int s = 0; s < kSums; ++s) sums[row][s] += a * b[s];
    }
  }
  for (int row = 0; row < kRows; ++row) {
    float lanes[kSums][kLanes];
    std::memcpy(lanes, sums[row], sizeof lanes);
    for (int s = 0; s < kSums; ++s) {
      for (int lane = 0; i + lane < count; ++lane) {
        lanes[s][lane] += x[row * count + i + lane] * y[s * count + i + lane];
      }
    }
    AddLanes(lanes, dots + row * dots_stride);
  }
}

// out[row] += weights[row * weights_stride + s] * (y + s * count), [0, count), in ascending order of s: rows
// of out are read and written once, those of y loaded once for kRows rows of out.
template <int kSums, int kRows>
[[gnu::always_inline]] inline void AddScaled(const float* weights, int64_t weights_stride, const float* y,
                                             int64_t count, float* const* out) {
  constexpr int kLanes = 16;
  typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Lanes sums[kRows], b;
    for (int row = 0; row < kRows; ++row) std::memcpy(&sums[row], out[row] + i, sizeof sums[row]);
    for (int s = 0; s < kSums; ++s) {
      std::memcpy(&b, y + s * count + i, sizeof b);
      for (int row = 0; row < kRows; ++row) sums[row] += weights[row * weights_stride + s] * b;
    }
    for (int row = 0; row < kRows; ++row) std::memcpy(out[row] + i, &sums[row], sizeof sums[row]);
  }
  for (; i < count; ++i) {
    for (int row = 0; row < kRows; ++row) {
      for (int s = 0; s < kSums; ++s) out[row][i] += weights[row * weights_stride + s] * y[s * count + i];
    }
  }
}

}  // namespace foredraft
