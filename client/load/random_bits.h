#pragma once

// Reproducible random numbers: the same on every machine and in any order of calls, unlike the distributions
// of <random>.

#include <cstdint>

namespace foredraft {

// 64 random bits, a pure function of its arguments (splitmix64's finalizer).
inline uint64_t RandomBits(uint64_t seed, uint64_t index) {
  uint64_t x = seed * 0x9e3779b97f4a7c15u + (index + 1) * 0xd1342543de82ef95u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// [0, 1)
inline double RandomUnit(uint64_t seed, uint64_t index) {
  return static_cast<double>(RandomBits(seed, index) >> 11) * 0x1p-53;
}

// 0..bound-1
inline int64_t RandomBelow(int64_t bound, uint64_t seed, uint64_t index) {
  return static_cast<int64_t>(RandomUnit(seed, index) * static_cast<double>(bound));
}

}  // namespace foredraft
