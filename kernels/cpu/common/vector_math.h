#pragma once

// Loops that the compiler can vectorise without changing a bit (see also kernels/exp.h).

#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/exp.h"

// FOREDRAFT_WIDE compiles a function for several register widths; the loader chooses the widest that the
// machine supports. Use it for loops over a row whose bits do not depend on the width: element-wise ones
// (nothing is fused, see cmake/Foredraft.cmake), or sums with a fixed number of accumulators (below).
// Functions need internal linkage: if the linker merged copies, an older machine could get one that it cannot
// run. It is off under sanitizers: their runtimes are not initialised when the loader resolves it.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define FOREDRAFT_WIDE __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define FOREDRAFT_WIDE
#endif

namespace foredraft {

// Loops with a fixed number of sums in registers need RunInRegisters instead of FOREDRAFT_WIDE: GCC leaves a
// vector that is wider than a clone's registers in memory. Body::Run<kFloats>(args...), always inlined, is
// compiled for registers of 4, 8 and 16 floats; RunInRegisters calls the widest that the machine has. Run's
// bits must not depend on kFloats.
#if defined(__x86_64__)
inline int RegisterFloats() {
  static const int floats = __builtin_cpu_supports("avx512f") ? 16 : __builtin_cpu_supports("avx2") ? 8 : 4;
  return floats;
}
template <class Body, class... Args>
__attribute__((target("avx512f"))) void RunInRegistersOf16(const Args&... args) {
  Body::template Run<16>(args...);
}
template <class Body, class... Args>
__attribute__((target("avx2"))) void RunInRegistersOf8(const Args&... args) {
  Body::template Run<8>(args...);
}
#else
inline int RegisterFloats() { return 4; }
#endif

template <class Body, class... Args>
void RunInRegisters(const Args&... args) {
#if defined(__x86_64__)
  if (RegisterFloats() == 16) return RunInRegistersOf16<Body>(args...);
  if (RegisterFloats() == 8) return RunInRegistersOf8<Body>(args...);
#endif
  Body::template Run<4>(args...);
}

// The functions below are always inlined, to be compiled for the caller's register width.

// Sum of term(i) over [0, count): 16 accumulators (element i goes to i % 16), then a fixed tree.
template <class Term>
[[gnu::always_inline]] inline float LaneSum(int64_t count, const Term& term) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i + lane < count; ++lane) lanes[lane] += term(i + lane);
  // Lane i + lane i + 8, then 4, 2 and 1, in vectors that every machine has registers for.
  typedef float Four __attribute__((vector_size(4 * sizeof(float))));
  Four part[4];
  std::memcpy(part, lanes, sizeof part);
  const Four four = (part[0] + part[2]) + (part[1] + part[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

// 1 / sqrt(mean(x^2) + eps): the factor of an RMS norm.
[[gnu::always_inline]] inline float RmsFactor(const float* x, int64_t count, float eps) {
  const float sum = LaneSum(count, [x](int64_t i) { return x[i] * x[i]; });
  return 1.0f / std::sqrt(sum / static_cast<float>(count) + eps);
}

}  // namespace foredraft
