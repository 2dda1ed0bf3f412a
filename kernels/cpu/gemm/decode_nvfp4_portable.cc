// NVFP4 to BF16 for any machine: plain loops over the outputs, which compilers vectorise.

#include <bit>
#include <cstring>

#include "kernels/cpu/device/isa.h"

namespace foredraft {
namespace {

constexpr int kOctets = 2;  // of a group (kernels/cpu/gemm/packed_weight.h)
constexpr float kValues[16] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0, -0.5f, -1, -1.5f, -2, -3, -4, -6};

// E4M3 without its sign: exponent and mantissa in a float's fields give the value times 2^-120, even if
// subnormal.
float Scale(unsigned char bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 20) * 0x1p120f; }

}  // namespace

void DecodeNvfp4Portable(const DecodeNvfp4Args& args) {
  const unsigned char* group = args.groups;
  uint32_t* pairs = args.pairs;
  for (int32_t i = 0; i < args.count; ++i) {
    uint32_t words[kOctets][kPanelWidth];
    std::memcpy(words, group, sizeof(words));
    group += sizeof(words);
    float scales[kPanelWidth];
    for (int lane = 0; lane < kPanelWidth; ++lane) scales[lane] = Scale(group[lane]);
    group += kPanelWidth;
    for (const auto& octet : words) {
      for (int q = 0; q < 4; ++q, pairs += kPanelWidth) {
        for (int lane = 0; lane < kPanelWidth; ++lane) {
          const float even = kValues[octet[lane] >> (4 * q) & 15] * scales[lane];
          const float odd = kValues[octet[lane] >> (16 + 4 * q) & 15] * scales[lane];
          pairs[lane] = std::bit_cast<uint32_t>(even) >> 16 | std::bit_cast<uint32_t>(odd);
        }
      }
    }
  }
}

}  // namespace foredraft
