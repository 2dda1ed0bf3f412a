#pragma once

// Maps floats to unsigned integers in the same order. Maxima, ties and radix digits of integers do not depend
// on the order of evaluation.

#include <bit>
#include <cstdint>

namespace foredraft::cuda {

// Larger floats have larger keys, equal floats (the two zeros) equal keys. NaN has key 0, below all others.
constexpr uint32_t OrderedKey(float x) {
  if (x != x) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(x == 0.0f ? 0.0f : x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

inline constexpr uint32_t kMinusInfinityKey = 0x007fffffu;  // the lowest, except for NaN's

// The float of a key; NaN if no float has this key.
constexpr float FromOrderedKey(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// Above the keys of all numbers: for values that make their row unusable, NaN and +infinity.
inline constexpr uint32_t kUnusableKey = 0xffffffffu;
constexpr uint32_t OrderedKeyOrUnusable(float x) {
  return x < FromOrderedKey(0xff800000u) ? OrderedKey(x) : kUnusableKey;
}
// Whether a token can be chosen from a row that has this largest key.
constexpr bool IsUsable(uint32_t largest_key) {
  return largest_key > kMinusInfinityKey && largest_key != kUnusableKey;
}

// The largest IndexedKey has the largest value and, among equal values, the lowest index.
constexpr uint64_t IndexedKey(uint32_t key, int32_t index) {
  return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~index);
}
constexpr int32_t IndexOf(uint64_t indexed_key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(indexed_key));
}

}  // namespace foredraft::cuda
