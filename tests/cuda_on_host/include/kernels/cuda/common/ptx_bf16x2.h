#pragma once

// kernels/cuda/common/ptx_bf16x2.h in software. The sum or product is rounded to float before it is rounded
// to BF16; where the result is a BF16 value, as in the kernels, both are exact.

#include <cstdint>

#include "kernels/dtype.h"

namespace foredraft::cuda {

template <class Of>
uint32_t OfBf16Pairs(uint32_t a, uint32_t b, const Of& of) {
  const auto half = [](uint32_t pair, int shift) {
    return ToFloat(bf16{static_cast<uint16_t>(pair >> shift)});
  };
  return static_cast<uint32_t>(ToBf16(of(half(a, 0), half(b, 0))).bits) |
         static_cast<uint32_t>(ToBf16(of(half(a, 16), half(b, 16))).bits) << 16;
}

inline uint32_t SubBf16x2(uint32_t a, uint32_t b) {
  return OfBf16Pairs(a, b, [](float x, float y) { return x - y; });
}
inline uint32_t MulBf16x2(uint32_t a, uint32_t b) {
  return OfBf16Pairs(a, b, [](float x, float y) { return x * y; });
}

}  // namespace foredraft::cuda
