#ifndef FOREDRAFT_KERNELS_CUDA_ORDERED_KEY_H_
#define FOREDRAFT_KERNELS_CUDA_ORDERED_KEY_H_

// Floats as unsigned integers in the same order, so that maxima, ties and radix digits are integers' affair,
// which no order of evaluation can change.

#include <bit>
#include <cstdint>

namespace foredraft::cuda {

// Larger floats have larger keys, equal ones (the two zeros) equal keys, NaN 0: below everything.
constexpr uint32_t OrderedKey(float x) {
  if (x != x) return 0;
  const uint32_t bits = std::bit_cast<uint32_t>(x == 0.0f ? 0.0f : x);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

inline constexpr uint32_t kMinusInfinityKey = 0x007fffffu;  // the lowest but for NaN's

// The float a key came from; NaN for what no float has.
constexpr float FromOrderedKey(uint32_t key) {
  return std::bit_cast<float>((key & 0x80000000u) != 0 ? key & 0x7fffffffu : ~key);
}

// For the largest value, among equal ones the one with the lowest index.
constexpr uint64_t IndexedKey(uint32_t key, int32_t index) {
  return static_cast<uint64_t>(key) << 32 | static_cast<uint32_t>(~index);
}
constexpr int32_t IndexOf(uint64_t indexed_key) {
  return static_cast<int32_t>(~static_cast<uint32_t>(indexed_key));
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_ORDERED_KEY_H_
