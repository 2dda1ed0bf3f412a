#pragma once

// One row of the KV cache (kernels/kv_row.h): a latent with its k_pe, or a key of DeepSeek-V4. All
// instruction paths give the same bits.

#include <cstdint>

#include "kernels/cpu/device/isa.h"
#include "kernels/dtype.h"
#include "kernels/kv_row.h"

namespace foredraft::cpu {

// Writes codes and scales of latent [latent_dim] to the coded row.
void EncodeLatent(const bf16* latent, const KvRowLayout& layout, uint8_t* row);

// Decodes the codes and scales of a coded row to latent [latent_dim], exactly.
void DecodeLatent(const IsaKernels& isa, const uint8_t* row, const KvRowLayout& layout, bf16* latent);

// The latent of a row of either kind: in the row itself, or decoded into scratch [latent_dim].
inline const bf16* LatentOf(const IsaKernels& isa, const uint8_t* row, const KvRowLayout& layout,
                            bf16* scratch) {
  if (!layout.coded()) return reinterpret_cast<const bf16*>(row);
  DecodeLatent(isa, row, layout, scratch);
  return scratch;
}

inline const bf16* RopeOf(const uint8_t* row, const KvRowLayout& layout) {
  return reinterpret_cast<const bf16*>(row + layout.rope_offset());
}

// Rotates the last layout.rope_dim values of a key x [layout.width()], rounds it to BF16 and writes the row.
void WriteKeyRow(const float* x, const float* cos_sin, const KvRowLayout& layout, uint8_t* row);

// The key of a row in FP32: out [layout.width()].
void WidenKeyRow(const IsaKernels& isa, const uint8_t* row, const KvRowLayout& layout, float* out);

}  // namespace foredraft::cpu
