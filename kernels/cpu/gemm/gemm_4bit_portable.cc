// The tile kernel of 4-bit weights for any machine. A group of a panel is decoded once for all rows.

#include <bit>
#include <cstring>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kOctet = 8;  // inputs in a word of codes (kernels/cpu/gemm/packed_weight.h)

float Bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The accumulators of one row: even and odd inputs of the group.
struct Chains {
  float even[kPanelWidth];
  float odd[kPanelWidth];
};

// weights[k][output] of an octet.
void Decode(const unsigned char* octet, const float* table, float (&weights)[kOctet][kPanelWidth]) {
  uint32_t words[kPanelWidth];
  std::memcpy(words, octet, sizeof(words));
  for (int k = 0; k < kOctet; ++k) {
    const int shift = 16 * (k % 2) + 4 * (k / 2);
    for (int lane = 0; lane < kPanelWidth; ++lane) weights[k][lane] = table[words[lane] >> shift & 15];
  }
}

void Accumulate(const float (&weights)[kOctet][kPanelWidth], const uint16_t* x, Chains& chains) {
  for (int k = 0; k < kOctet; k += 2) {
    const float x_even = Bf16(x[k]);
    const float x_odd = Bf16(x[k + 1]);
    for (int lane = 0; lane < kPanelWidth; ++lane) chains.even[lane] += weights[k][lane] * x_even;
    for (int lane = 0; lane < kPanelWidth; ++lane) chains.odd[lane] += weights[k + 1][lane] * x_odd;
  }
}

}  // namespace

void Gemm4BitPortable(const GemmTileArgs& args) {
  float table[16];
  for (int code = 0; code < 16; ++code) table[code] = Bf16(args.table[code]);
  std::memset(args.tile, 0, sizeof(float) * kPanelWidth * args.rows);
  const unsigned char* w = args.panel;
  for (int32_t first = 0; first < args.k; first += args.block_k) {
    Chains chains[kMaxTileRows];
    std::memset(chains, 0, sizeof(Chains) * args.rows);
    for (int32_t k = first; k < first + args.block_k; k += kOctet, w += sizeof(uint32_t) * kPanelWidth) {
      float weights[kOctet][kPanelWidth];
      Decode(w, table, weights);
      for (int32_t row = 0; row < args.rows; ++row) Accumulate(weights, args.x[row] + k, chains[row]);
    }
    uint16_t scales[kPanelWidth];
    std::memcpy(scales, w, sizeof(scales));
    w += sizeof(scales);
    for (int32_t row = 0; row < args.rows; ++row) {
      float* const out = args.tile + row * kPanelWidth;
      for (int lane = 0; lane < kPanelWidth; ++lane) {
        out[lane] += (chains[row].even[lane] + chains[row].odd[lane]) * Bf16(scales[lane]);
      }
    }
  }
}

}  // namespace foredraft
