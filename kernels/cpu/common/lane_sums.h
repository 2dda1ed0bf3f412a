#pragma once

// Several dot products side by side, each with the bits of LaneSum (vector_math.h). One sum alone waits for
// its own last addition; several hide each other's latency and share what they load. Always inlined, for
// bodies of RunInRegisters (vector_math.h): a register has kFloats floats.

#include <cstdint>
#include <cstring>

#include "kernels/cpu/device/isa.h"

namespace foredraft {

inline constexpr int kSumLanes = 16;  // LaneSum's accumulators

template <int kFloats>
struct RegisterOf {
  typedef float Type __attribute__((vector_size(kFloats * sizeof(float))));
};

template <>
struct RegisterOf<1> {
  typedef float Type;
};

// Sums the 16 lanes of each of four vectors in LaneSum's order: lane i + lane i + 8, then 4, 2 and 1. From
// four lanes on, the four sums share their additions.
[[gnu::always_inline]] inline void AddLanes(const float (*lanes)[kSumLanes], float* sums) {
  typedef RegisterOf<4>::Type Quarter;
  Quarter q[4];
  FOREDRAFT_UNROLL
  for (int s = 0; s < 4; ++s) {
    Quarter part[4];
    std::memcpy(part, lanes[s], sizeof part);
    q[s] = (part[0] + part[2]) + (part[1] + part[3]);
  }
  const Quarter a =
      __builtin_shufflevector(q[0], q[1], 0, 1, 4, 5) + __builtin_shufflevector(q[0], q[1], 2, 3, 6, 7);
  const Quarter b =
      __builtin_shufflevector(q[2], q[3], 0, 1, 4, 5) + __builtin_shufflevector(q[2], q[3], 2, 3, 6, 7);
  const Quarter all = __builtin_shufflevector(a, b, 0, 2, 4, 6) + __builtin_shufflevector(a, b, 1, 3, 5, 7);
  std::memcpy(sums, &all, sizeof all);
}

// Vectors as rows, `stride` elements apart.
struct VectorRows {
  const float* data;
  int64_t stride;
};

// The lanes of kCount sums. Members move them register by register: GCC copies a whole array with string
// instructions.
template <int kFloats, int kCount>
struct LaneSums {
  typedef typename RegisterOf<kFloats>::Type Register;
  static constexpr int kParts = kSumLanes / kFloats;
  Register sums[kCount][kParts];

  [[gnu::always_inline]] LaneSums() {
    FOREDRAFT_UNROLL
    for (int of = 0; of < kCount; ++of) {
      FOREDRAFT_UNROLL
      for (int part = 0; part < kParts; ++part) sums[of][part] = Register{};
    }
  }
  [[gnu::always_inline]] void Store(float (*lanes)[kSumLanes]) const {
    FOREDRAFT_UNROLL
    for (int of = 0; of < kCount; ++of) {
      FOREDRAFT_UNROLL
      for (int part = 0; part < kParts; ++part) {
        std::memcpy(lanes[of] + part * kFloats, &sums[of][part], sizeof(Register));
      }
    }
  }
};

// sums[r * kSums + s] += the products of row r of x and row s of y, [0, count), count a multiple of 16, for
// kRows rows of x and kSums of y. Element i goes to lane i % 16.
template <int kFloats, int kRows, int kSums>
[[gnu::always_inline]] inline void AddProducts(const VectorRows& x, const VectorRows& y, int64_t count,
                                               LaneSums<kFloats, kRows * kSums>& sums) {
  typedef typename RegisterOf<kFloats>::Type Register;
  for (int64_t i = 0; i < count; i += kSumLanes) {
    FOREDRAFT_UNROLL
    for (int part = 0; part < kSumLanes / kFloats; ++part) {
      Register a, b[kSums];
      FOREDRAFT_UNROLL
      for (int s = 0; s < kSums; ++s) {
        std::memcpy(&b[s], y.data + s * y.stride + i + part * kFloats, sizeof a);
      }
      FOREDRAFT_UNROLL
      for (int row = 0; row < kRows; ++row) {
        std::memcpy(&a, x.data + row * x.stride + i + part * kFloats, sizeof a);
        FOREDRAFT_UNROLL
        for (int s = 0; s < kSums; ++s) sums.sums[row * kSums + s][part] += a * b[s];
      }
    }
  }
}

// dots[r * dots_stride + s] = row r of x · row s of y, [0, count).
template <int kFloats, int kRows, int kSums>
[[gnu::always_inline]] inline void DotProducts(const VectorRows& x, const VectorRows& y, int64_t count,
                                               float* dots, int64_t dots_stride) {
  constexpr int kAll = kRows * kSums, kPadded = (kAll + 3) / 4 * 4;
  const int64_t whole = count / kSumLanes * kSumLanes;
  LaneSums<kFloats, kAll> sums;
  AddProducts<kFloats, kRows, kSums>(x, y, whole, sums);
  float lanes[kPadded][kSumLanes], all[kPadded];
  sums.Store(lanes);
  for (int of = 0; whole < count && of < kAll; ++of) {
    const float* const a = x.data + of / kSums * x.stride + whole;
    const float* const b = y.data + of % kSums * y.stride + whole;
    for (int lane = 0; whole + lane < count; ++lane) lanes[of][lane] += a[lane] * b[lane];
  }
  for (int of = kAll; of < kPadded; ++of) std::memset(lanes[of], 0, sizeof lanes[of]);
  FOREDRAFT_UNROLL
  for (int of = 0; of < kPadded; of += 4) AddLanes(lanes + of, all + of);
  FOREDRAFT_UNROLL
  for (int row = 0; row < kRows; ++row) {
    FOREDRAFT_UNROLL
    for (int s = 0; s < kSums; ++s) dots[row * dots_stride + s] = all[row * kSums + s];
  }
}

// Weighted rows of y, [0, columns), for rows of sums.
struct WeightedSum {
  const float* weights;
  int64_t weights_stride;
  const float* keep;  // [kRows]
  VectorRows y;
  int32_t y_rows;
  int64_t columns;
};
// out[r] = out[r] * keep[r] + the sum over rows t of y, ascending, of weights[r * weights_stride + t] * row
// t, for kRows rows of out, whose sums stay in registers.
template <int kFloats, int kRows>
[[gnu::always_inline]] inline void AddWeighted(const WeightedSum& sum, float* const* out) {
  typedef typename RegisterOf<kFloats>::Type Register;
  constexpr int kParts = 2;
  int64_t i = 0;
  for (; i + kParts * kFloats <= sum.columns; i += kParts * kFloats) {
    Register sums[kRows][kParts];
    FOREDRAFT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      FOREDRAFT_UNROLL
      for (int part = 0; part < kParts; ++part) {
        std::memcpy(&sums[row][part], out[row] + i + part * kFloats, sizeof(Register));
        sums[row][part] *= sum.keep[row];
      }
    }
    const float* y = sum.y.data + i;
    for (int32_t t = 0; t < sum.y_rows; ++t, y += sum.y.stride) {
      Register b[kParts];
      FOREDRAFT_UNROLL
      for (int part = 0; part < kParts; ++part) std::memcpy(&b[part], y + part * kFloats, sizeof(Register));
      FOREDRAFT_UNROLL
      for (int row = 0; row < kRows; ++row) {
        const float weight = sum.weights[row * sum.weights_stride + t];
        FOREDRAFT_UNROLL
        for (int part = 0; part < kParts; ++part) sums[row][part] += weight * b[part];
      }
    }
    FOREDRAFT_UNROLL
    for (int row = 0; row < kRows; ++row) {
      FOREDRAFT_UNROLL
      for (int part = 0; part < kParts; ++part) {
        std::memcpy(out[row] + i + part * kFloats, &sums[row][part], sizeof(Register));
      }
    }
  }
  for (; i < sum.columns; ++i) {
    for (int row = 0; row < kRows; ++row) {
      float value = out[row][i] * sum.keep[row];
      for (int32_t t = 0; t < sum.y_rows; ++t) {
        value += sum.weights[row * sum.weights_stride + t] * sum.y.data[t * sum.y.stride + i];
      }
      out[row][i] = value;
    }
  }
}

}  // namespace foredraft
