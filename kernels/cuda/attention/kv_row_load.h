#pragma once

// Coded rows of the KV cache (kernels/kv_row.h) decoded on the device.

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/ptx_bf16x2.h"
#include "kernels/kv_row.h"

namespace foredraft::cuda {

// The scale of the group of a column.
__device__ __forceinline__ float KvScaleAt(const uint8_t* row, const KvRowLayout& layout, int32_t column) {
  return reinterpret_cast<const float*>(row + layout.scale_offset())[column / layout.group];
}

// Element i of a row, c then k_pe.
template <DType kDType>
__device__ __forceinline__ bf16 LoadKvElement(const uint8_t* row, const KvRowLayout& layout, int32_t i) {
  if (i >= layout.latent_dim) {
    return reinterpret_cast<const bf16*>(row + layout.rope_offset())[i - layout.latent_dim];
  }
  if constexpr (kDType == DType::kBF16) {
    return reinterpret_cast<const bf16*>(row)[i];
  } else {
    return KvCodes<kDType>::Value(row[i], KvScaleAt(row, layout, i));
  }
}

// Two codes, in the upper bytes of the halves of `codes`, as a pair of BF16 values. An E4M3 code's exponent
// and mantissa, read as BF16, are the value times 2^-120; BF16 products accept subnormals, and both products
// here are exact.
__device__ __forceinline__ uint32_t DecodePair(uint32_t codes, uint32_t scales) {
  constexpr uint32_t kTwoTo120 = (127 + 120) << 7;
  const uint32_t pair = (codes & 0x80008000u) | ((codes & 0x7f007f00u) >> 4);
  return MulBf16x2(MulBf16x2(pair, kTwoTo120 << 16 | kTwoTo120), scales);
}

// Eight codes of one group as BF16 values. A scale is a BF16 value: the upper half of its float.
template <DType kDType>
__device__ uint4 DecodeEight(uint2 codes, float scale);
template <>
__device__ __forceinline__ uint4 DecodeEight<DType::kF8E4M3>(uint2 codes, float scale) {
  const uint32_t scales = __byte_perm(__float_as_uint(scale), 0, 0x3232);
  return make_uint4(DecodePair(__byte_perm(codes.x, 0, 0x1404), scales),
                    DecodePair(__byte_perm(codes.x, 0, 0x3424), scales),
                    DecodePair(__byte_perm(codes.y, 0, 0x1404), scales),
                    DecodePair(__byte_perm(codes.y, 0, 0x3424), scales));
}

// Eight elements of a coded row as they lie in it, so that they can be loaded before they are decoded.
struct StoredEight {
  uint4 bytes;
  float scale;  // of eight codes; 0: the bytes are BF16 values

  template <DType kDType>
  __device__ __forceinline__ uint4 Decoded() const {
    return scale == 0.0f ? bytes : DecodeEight<kDType>(make_uint2(bytes.x, bytes.y), scale);
  }
};

// Elements [i, i + 8). i, latent_dim and rope_dim are multiples of 8.
__device__ __forceinline__ StoredEight LoadStoredEight(const uint8_t* row, const KvRowLayout& layout,
                                                       int32_t i) {
  if (i >= layout.latent_dim) {
    return {*reinterpret_cast<const uint4*>(row + layout.rope_offset() + 2 * (i - layout.latent_dim)), 0.0f};
  }
  const uint2 codes = *reinterpret_cast<const uint2*>(row + i);
  return {make_uint4(codes.x, codes.y, 0, 0), KvScaleAt(row, layout, i)};
}

// Elements [i, i + 8) of a row of any widths, decoded; zeros past the row's end.
template <DType kDType>
__device__ __forceinline__ StoredEight DecodedEight(const uint8_t* row, const KvRowLayout& layout,
                                                    int32_t i) {
  uint32_t pairs[4] = {};
  for (int j = 0; j < 8 && i + j < layout.width(); ++j) {
    pairs[j / 2] |= uint32_t{LoadKvElement<kDType>(row, layout, i + j).bits} << (16 * (j % 2));
  }
  return {make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]), 0.0f};
}

// Elements [i, i + 8) of a row, c then k_pe. i, latent_dim and rope_dim are multiples of 8.
template <DType kDType>
__device__ __forceinline__ uint4 LoadKvEight(const uint8_t* row, const KvRowLayout& layout, int32_t i) {
  if (i >= layout.latent_dim) {
    return *reinterpret_cast<const uint4*>(row + layout.rope_offset() + 2 * (i - layout.latent_dim));
  }
  if constexpr (kDType == DType::kBF16) {
    return *reinterpret_cast<const uint4*>(row + 2 * i);
  } else {
    return DecodeEight<kDType>(*reinterpret_cast<const uint2*>(row + i), KvScaleAt(row, layout, i));
  }
}

}  // namespace foredraft::cuda
