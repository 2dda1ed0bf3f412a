#pragma once

#include <cstdint>

namespace foredraft {

// The bytes of one KV cache row: what one layer keeps of one position. The configuration needs the size, the
// backends the offsets; kernels/kv_row.h has the numbers.
//
//   BF16  c, then k_pe, without padding
//   FP8   the E4M3 codes of c; an FP32 scale per 128 columns of c (the last group may be short); k_pe in
//         BF16. Each of the three parts is padded to a multiple of 16 bytes.
//
// So FP8 rows and their parts are 16-byte aligned, whatever the dimensions are. With latent_dim 512 and
// rope_dim 64 nothing is padded, and the row is FlashMLA's: 512 + 16 + 128 = 656 bytes.
struct KvRowLayout {
  static constexpr int32_t kGroup = 128;     // columns that share a scale
  static constexpr int32_t kAlignment = 16;  // of an FP8 row's parts, in bytes

  int32_t latent_dim = 0;  // kv_lora_rank: c
  int32_t rope_dim = 0;    // qk_rope_head_dim: k_pe
  bool fp8 = false;

  constexpr int32_t group_count() const { return (latent_dim + kGroup - 1) / kGroup; }
  // Offsets from the row's start; the codes, or c in BF16, are at 0.
  constexpr int32_t scale_offset() const { return Padded(latent_dim); }
  constexpr int32_t rope_offset() const {
    return fp8 ? scale_offset() + Padded(4 * group_count()) : 2 * latent_dim;
  }
  constexpr int32_t bytes() const { return rope_offset() + (fp8 ? Padded(2 * rope_dim) : 2 * rope_dim); }

 private:
  static constexpr int32_t Padded(int32_t bytes) {
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

}  // namespace foredraft
