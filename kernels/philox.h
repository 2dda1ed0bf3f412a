#pragma once

// The noise of sampling: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011),
// a pure function of (seed, position, token id): every backend, batch and drafter draws the same noise.
//
// clang-format off
//   key      (low, high 32 bits of the seed)
//   counter  (v / 4, position, 0, 0); its four outputs belong to the token ids 4 (v / 4) + 0..3
//   uniform  u = (x + 0.5) 2^-32, inside (0, 1), exact in double
//   Gumbel   g = float(-log(-log(u))), logarithms in double; from -3.13 to 22.88
// clang-format on

#include <array>
#include <cmath>
#include <cstdint>

namespace foredraft {

using PhiloxBlock = std::array<uint32_t, 4>;

constexpr PhiloxBlock Philox4x32(PhiloxBlock counter, uint64_t seed) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;  // golden ratio
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;  // sqrt(3) - 1
  uint32_t key0 = static_cast<uint32_t>(seed);
  uint32_t key1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * counter[0];
    const uint64_t product1 = kMultiplier1 * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(product0)};
    key0 += kWeyl0;
    key1 += kWeyl1;
  }
  return counter;
}

// The four outputs of token ids 4 * block .. 4 * block + 3 at a position.
constexpr PhiloxBlock NoiseBlock(uint64_t seed, int32_t position, int32_t block) {
  return Philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(position), 0, 0}, seed);
}

constexpr double UnitInterval(uint32_t x) { return (static_cast<double>(x) + 0.5) * 0x1p-32; }

inline float Gumbel(uint32_t x) { return static_cast<float>(-std::log(-std::log(UnitInterval(x)))); }

// An upper bound of Gumbel(x).
inline constexpr float kMaxGumbel = 22.9f;

}  // namespace foredraft
