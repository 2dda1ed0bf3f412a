// The tile kernel for any machine: plain loops over the outputs that compilers vectorise.

#include <bit>
#include <cstring>

#include "kernels/cpu/isa.h"

namespace foredraft {
namespace {

float Bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The weights of one output at an even k and the next k, read as one integer: that vectorises, two strided
// reads do not.
struct Bf16Weights {
  using Pair = uint32_t;
  static float Even(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
  static float Odd(uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000u); }
};

// E4M3 without branches: exponent and mantissa shifted to a float's bit positions, times 2^120 for the
// difference of the exponent biases. Also right for subnormals.
struct F8Weights {
  using Pair = uint16_t;
  static float Value(uint32_t bits) {
    const uint32_t magnitude = bits & 0x7fu;
    const uint32_t sign = (bits & 0x80u) << 24;
    const float value = std::bit_cast<float>(sign | magnitude << 20) * 0x1p120f;
    return magnitude == 0x7fu ? std::bit_cast<float>(0x7fc00000u) : value;
  }
  static float Even(uint32_t pair) { return Value(pair & 0xffu); }
  static float Odd(uint32_t pair) { return Value(pair >> 8); }
};
static_assert(std::endian::native == std::endian::little, "pairs are read as one integer");

// One k block for one row: two accumulators per output, for even and odd k.
template <class Weights>
void BlockDot(const unsigned char* w, const uint16_t* x, int32_t len, float* sums) {
  float even[kStripeWidth] = {};
  float odd[kStripeWidth] = {};
  typename Weights::Pair pairs[kStripeWidth];
  for (int32_t i = 0; i + 2 <= len; i += 2, w += sizeof(pairs)) {
    std::memcpy(pairs, w, sizeof(pairs));
    const float x_even = Bf16(x[i]);
    const float x_odd = Bf16(x[i + 1]);
    for (int lane = 0; lane < kStripeWidth; ++lane) even[lane] += Weights::Even(pairs[lane]) * x_even;
    for (int lane = 0; lane < kStripeWidth; ++lane) odd[lane] += Weights::Odd(pairs[lane]) * x_odd;
  }
  if (len % 2 != 0) {
    std::memcpy(pairs, w, sizeof(pairs));
    const float x_even = Bf16(x[len - 1]);
    for (int lane = 0; lane < kStripeWidth; ++lane) even[lane] += Weights::Even(pairs[lane]) * x_even;
  }
  for (int lane = 0; lane < kStripeWidth; ++lane) sums[lane] = even[lane] + odd[lane];
}

template <class Weights>
void Tile(const GemmTileArgs& args) {
  for (int32_t row = 0; row < args.rows; ++row) {
    const unsigned char* w = args.stripe;
    const float* scale = args.scales;
    float* out = args.tile + row * kStripeWidth;
    for (int lane = 0; lane < kStripeWidth; ++lane) out[lane] = 0.0f;
    for (int32_t first = 0; first < args.k; first += args.block_k) {
      const int32_t len = args.k - first < args.block_k ? args.k - first : args.block_k;
      float sums[kStripeWidth];
      BlockDot<Weights>(w, args.x[row] + first, len, sums);
      w += static_cast<int64_t>((len + 1) / 2) * kStripeWidth * sizeof(typename Weights::Pair);
      for (int lane = 0; lane < kStripeWidth; ++lane) {
        out[lane] += scale != nullptr ? sums[lane] * scale[lane] : sums[lane];
      }
      if (scale != nullptr) scale += kStripeWidth;
    }
  }
}

}  // namespace

void GemmBf16Portable(const GemmTileArgs& args) { Tile<Bf16Weights>(args); }
void GemmF8Portable(const GemmTileArgs& args) { Tile<F8Weights>(args); }

}  // namespace foredraft
