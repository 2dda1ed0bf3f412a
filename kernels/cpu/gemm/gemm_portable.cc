// The tile kernel for any machine: plain loops over the outputs, which compilers vectorise.

#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

float Bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The weights of one output at an even k and the next k, read as one integer: that vectorises, two strided
// reads do not.
struct Bf16Weights {
  using Pair = uint32_t;
  static constexpr int32_t kFewRows = 2;  // too few to pay for widening the weights first
  static float Even(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float Odd(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
};

// E4M3 without branches: exponent and mantissa move to a float's bit positions, the exponent's bias grows by
// 120. Subnormals are multiples of 2^-9.
struct F8Weights {
  using Pair = uint16_t;
  static constexpr int32_t kFewRows = 1;
  static float Value(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fu;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t subnormal =
        std::bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
    const uint32_t value = magnitude < 8 ? subnormal : magnitude == 0x7fu ? 0x7fc00000u : normal;
    return std::bit_cast<float>(value | (bits & 0x80u) << 24);
  }
  static float Even(uint32_t pair) { return Value(pair & 0xffu); }
  static float Odd(uint32_t pair) { return Value(pair >> 8); }
};
static_assert(std::endian::native == std::endian::little, "pairs are read as one integer");

// Pairs of k for 32 outputs, as they are packed.
template <class Weights>
struct PackedPair {
  typename Weights::Pair pairs[kPanelWidth];

  float Even(int lane) const { return Weights::Even(pairs[lane]); }
  float Odd(int lane) const { return Weights::Odd(pairs[lane]); }
};

// A pair, widened once for several rows.
struct WidePair {
  float even[kPanelWidth];
  float odd[kPanelWidth];

  float Even(int lane) const { return even[lane]; }
  float Odd(int lane) const { return odd[lane]; }
};
constexpr int32_t kWidePairs = 64;

template <class Weights>
void Widen(const unsigned char* w, int32_t count, WidePair* wide) {
  PackedPair<Weights> pair;
  for (int32_t i = 0; i < count; ++i, w += sizeof(pair)) {
    std::memcpy(&pair, w, sizeof(pair));
    for (int lane = 0; lane < kPanelWidth; ++lane) wide[i].even[lane] = pair.Even(lane);
    for (int lane = 0; lane < kPanelWidth; ++lane) wide[i].odd[lane] = pair.Odd(lane);
  }
}

// Adds x[0, len) times weights to two accumulators per output, for even and odd k.
template <class Pair>
void AddProducts(const unsigned char* w, const uint16_t* x, int32_t len, WidePair& total) {
  WidePair sums = total;
  Pair pair;
  for (int32_t i = 0; i + 2 <= len; i += 2, w += sizeof(pair)) {
    std::memcpy(&pair, w, sizeof(pair));
    const float x_even = Bf16(x[i]);
    const float x_odd = Bf16(x[i + 1]);
    for (int lane = 0; lane < kPanelWidth; ++lane) sums.even[lane] += pair.Even(lane) * x_even;
    for (int lane = 0; lane < kPanelWidth; ++lane) sums.odd[lane] += pair.Odd(lane) * x_odd;
  }
  if (len % 2 != 0) {
    std::memcpy(&pair, w, sizeof(pair));
    const float x_even = Bf16(x[len - 1]);
    for (int lane = 0; lane < kPanelWidth; ++lane) sums.even[lane] += pair.Even(lane) * x_even;
  }
  total = sums;
}

// Adds the pairs of a piece of k to the sums of all rows.
template <class Weights>
void Piece(const GemmTileArgs& args, const unsigned char* w, int32_t first, int32_t len, WidePair* sums) {
  if (args.rows <= Weights::kFewRows) {
    for (int32_t row = 0; row < args.rows; ++row) {
      AddProducts<PackedPair<Weights>>(w, args.x[row] + first, len, sums[row]);
    }
    return;
  }
  WidePair wide[kWidePairs];
  Widen<Weights>(w, (len + 1) / 2, wide);
  for (int32_t row = 0; row < args.rows; ++row) {
    AddProducts<WidePair>(reinterpret_cast<const unsigned char*>(wide), args.x[row] + first, len, sums[row]);
  }
}

template <class Weights>
void Tile(const GemmTileArgs& args) {
  const unsigned char* w = args.panel;
  const float* scale = args.scales;
  std::memset(args.tile, 0, sizeof(float) * kPanelWidth * args.rows);
  for (int32_t first = 0; first < args.k; first += args.block_k) {
    const int32_t block_end = first + std::min(args.k - first, args.block_k);
    WidePair sums[kMaxTileRows];
    std::memset(sums, 0, sizeof(WidePair) * args.rows);
    for (int32_t k = first; k < block_end; k += 2 * kWidePairs) {
      const int32_t len = std::min(block_end - k, 2 * kWidePairs);
      Piece<Weights>(args, w, k, len, sums);
      w += (len + 1) / 2 * sizeof(PackedPair<Weights>);
    }
    for (int32_t row = 0; row < args.rows; ++row) {
      float* out = args.tile + row * kPanelWidth;
      for (int lane = 0; lane < kPanelWidth; ++lane) {
        const float sum = sums[row].even[lane] + sums[row].odd[lane];
        out[lane] += scale != nullptr ? sum * scale[lane] : sum;
      }
    }
    if (scale != nullptr) scale += kPanelWidth;
  }
}

}  // namespace

void GemmBf16Portable(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Portable(const GemmTileArgs& args) { Tile<F8Weights>(args); }

}  // namespace foredraft
