#pragma once

// The FP8 rows of DeepSeek-V4's keys: 448 codes, a scale per 64 of them, 64 rotated values in BF16
// (kernels/kv_row.h). With the layout known a row takes eight loads of a thread and no branch.

#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/kv_row.h"

namespace foredraft::cuda {

inline constexpr KvRowLayout kFp8KeyLayout = {
    .latent_dim = 448, .rope_dim = 64, .dtype = DType::kF8E4M3, .group = KvRowLayout::kKeyGroup};
inline constexpr int kFp8CodeLines = 7;  // 64 codes, which share a scale

// Where absent keys are read: codes and scales of 0 decode to zeros, so that no thread asks whether its key
// is there.
__device__ const uint4 kZeroFp8Key[kFp8KeyLayout.bytes() / sizeof(uint4)] = {};

// What one of the eight lanes that decode a row has of its codes, as they are stored: eight of every line,
// and one of the scales, which takes fewer registers than all of them.
struct Fp8KeyPart {
  uint2 codes[kFp8CodeLines];
  float scale;  // of the line with the part's number

  // The row, null: zeros, and which of the eight parts.
  __device__ __forceinline__ void Load(const uint8_t* row, int part) {
    const uint8_t* const from = row != nullptr ? row : reinterpret_cast<const uint8_t*>(kZeroFp8Key);
#pragma unroll
    for (int line = 0; line < kFp8CodeLines; ++line) {
      codes[line] = __ldcg(reinterpret_cast<const uint2*>(from + part * 8) + line * 8);
    }
    scale = __ldcg(reinterpret_cast<const float*>(from + kFp8KeyLayout.scale_offset()) + part);
  }
  // Eight values of a line; by all lanes of a warp together.
  __device__ __forceinline__ uint4 Decoded(int line) const {
    return DecodeEight<DType::kF8E4M3>(codes[line], __shfl_sync(0xffffffffu, scale, line, 8));
  }
};

}  // namespace foredraft::cuda
