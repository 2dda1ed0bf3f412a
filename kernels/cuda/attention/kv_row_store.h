#pragma once

// Rows of the KV cache (kernels/kv_row.h) written on the device, four adjacent columns per thread.

#include <cstdint>

#include "kernels/cuda/common/vec4.h"
#include "kernels/kv_row.h"

namespace foredraft::cuda {

// Four columns of a latent and the scale of their group.
struct LatentCodes {
  uint32_t codes;
  float scale;
};

// Encodes four columns. Called by whole warps: lane l has columns 4 l .. 4 l + 3 of 128, which are whole
// groups of kGroup columns; columns outside of the latent are zero.
template <DType kDType, int kGroup>
__device__ __forceinline__ LatentCodes EncodeLatent(const Vec4& y) {
  static_assert(kGroup % 4 == 0 && 128 % kGroup == 0);
  uint32_t largest = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) largest = max(largest, KvMagnitude(ToBf16(y.x[i])));
#pragma unroll
  for (int distance = kGroup / 8; distance > 0; distance /= 2) {
    largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, distance));
  }
  using Codes = KvCodes<kDType>;
  LatentCodes latent = {.codes = 0, .scale = Codes::Scale(largest)};
  const float inverse = __fdiv_rn(1.0f, latent.scale);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    latent.codes |= static_cast<uint32_t>(Codes::Code(ToBf16(y.x[i]), inverse)) << (8 * i);
  }
  return latent;
}

// Stores columns [first, first + 4) of a coded row; column `first` is of the latent. The codes are
// padded to a multiple of 16.
__device__ __forceinline__ void StoreLatent(const KvRowLayout& layout, uint8_t* row, int32_t first,
                                            const LatentCodes& latent) {
  *reinterpret_cast<uint32_t*>(row + first) = latent.codes;
  if (first % layout.group == 0) {
    reinterpret_cast<float*>(row + layout.scale_offset())[first / layout.group] = latent.scale;
  }
}

// ---- keys of DeepSeek-V4 ----

template <DType kDType>
__device__ __forceinline__ KvRowLayout KeyLayout(const KvRowLayout& layout) {
  return {layout.latent_dim, layout.rope_dim, kDType, KvRowLayout::kKeyGroup};
}

// Whether a thread's loop over the columns of a row goes on with column `first`, a multiple of 4. For coded
// rows a warp goes on as a whole, because lanes exchange the largest value of a group.
template <DType kDType>
__device__ __forceinline__ bool HasColumns(int32_t first, int32_t width) {
  return kDType != DType::kBF16 ? first / 128 * 128 < width : first < width;
}

// The codes of columns [first, first + 4) of a rotated key; nothing for BF16. Called like EncodeLatent.
template <DType kDType>
__device__ __forceinline__ LatentCodes EncodeKey(const KvRowLayout& layout, int32_t first, Vec4 y) {
  if constexpr (kDType == DType::kBF16) {
    return {};
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= layout.latent_dim) y.x[i] = 0.0f;
    }
    return EncodeLatent<kDType, KvRowLayout::kKeyGroup>(y);
  }
}

// Stores columns [first, first + 4) of a key; columns past its end are not stored. latent: EncodeKey's
// result. `aligned`: both parts of the key are multiples of 4 wide, and BF16 rows 8-byte aligned.
template <bool aligned, DType kDType>
__device__ __forceinline__ void StoreKey(const KvRowLayout& layout, uint8_t* row, int32_t first,
                                         const Vec4& y, const LatentCodes& latent) {
  if (first >= layout.width()) return;
  if constexpr (kDType == DType::kBF16) {
    StoreVec4<aligned>(reinterpret_cast<bf16*>(row), first, layout.width(), y);
    return;
  }
  bf16* const rotated = reinterpret_cast<bf16*>(row + layout.rope_offset());
  const int32_t kept = layout.latent_dim;
  if (first < kept) StoreLatent(layout, row, first, latent);
  if constexpr (aligned) {
    if (first >= kept) StoreVec4<true>(rotated, first - kept, layout.rope_dim, y);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (first + i >= kept && first + i < layout.width()) rotated[first + i - kept] = ToBf16(y.x[i]);
    }
  }
}

// ---- for the host ----

// Whether rows at `data` can be written with `aligned`.
inline bool IsKeyAligned(const KvRowLayout& layout, const uint8_t* data, int64_t stride_bytes) {
  if (layout.latent_dim % 4 != 0 || layout.rope_dim % 4 != 0) return false;
  return reinterpret_cast<uintptr_t>(data) % 8 == 0 && stride_bytes % 8 == 0;
}

}  // namespace foredraft::cuda
