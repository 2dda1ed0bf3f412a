#pragma once

// The FP8 rows of DeepSeek-V4's keys: 448 codes, a scale per 64 of them, 64 rotated values in BF16
// (kernels/kv_row.h). Because the layout is known at compile time, a thread loads its part of a row with
// eight loads and no branch.

#include "kernels/cuda/attention/kv_row_load.h"
#include "kernels/kv_row.h"

namespace foredraft::cuda {

inline constexpr KvRowLayout kFp8KeyLayout = {
    .latent_dim = 448, .rope_dim = 64, .dtype = DType::kF8E4M3, .group = KvRowLayout::kKeyGroup};
inline constexpr int kFp8CodeLines = 7;  // 64 codes, which share a scale

// Where absent keys are read: codes and scales of 0 decode to zeros, so that no thread asks whether its key
// is there.
__device__ const uint4 kZeroFp8Key[kFp8KeyLayout.bytes() / sizeof(uint4)] = {};

// One of eight parts of a row, for the lane that decodes it: eight codes of every line, as stored, and one of
// the scales, because all of them would take more registers.
struct Fp8KeyPart {
  uint2 codes[kFp8CodeLines];
  float scale;  // of the line with the part's number

  // Loads part 0..7 of a row (null: zeros).
  __device__ __forceinline__ void Load(const uint8_t* row, int part) {
    const uint8_t* const from = row != nullptr ? row : reinterpret_cast<const uint8_t*>(kZeroFp8Key);
#pragma unroll
    for (int line = 0; line < kFp8CodeLines; ++line) {
      codes[line] = __ldcg(reinterpret_cast<const uint2*>(from + part * 8) + line * 8);
    }
    scale = __ldcg(reinterpret_cast<const float*>(from + kFp8KeyLayout.scale_offset()) + part);
  }
  // Eight values of a line. Called by all lanes of a warp together.
  __device__ __forceinline__ uint4 Decoded(int line) const {
    return DecodeEight<DType::kF8E4M3>(codes[line], __shfl_sync(0xffffffffu, scale, line, 8));
  }
};

}  // namespace foredraft::cuda
