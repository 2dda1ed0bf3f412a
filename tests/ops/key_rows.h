#pragma once

// Keys of DeepSeek-V4 as rows of kernels/kv_row.h.

#include <cstring>
#include <vector>

#include "kernels/kv_row.h"
#include "tests/ops/kv_fixture.h"

namespace foredraft {

// `rotated` of the last values of a key of `width` are its RoPE part.
constexpr KvRowLayout KeyLayout(int width, int rotated, bool fp8) {
  return {.latent_dim = width - rotated,
          .rope_dim = rotated,
          .dtype = fp8 ? DType::kF8E4M3 : DType::kBF16,
          .group = KvRowLayout::kKeyGroup};
}

// The rows of keys [count, layout.width()], which are rounded as the rows are. What no value needs is 0xff.
inline std::vector<uint8_t> KeyRows(const KvRowLayout& layout, std::vector<bf16>& keys) {
  const size_t count = keys.size() / layout.width();
  std::vector<uint8_t> rows(count * layout.bytes(), 0xff);
  for (size_t i = 0; i < count; ++i) {
    bf16* const key = &keys[i * layout.width()];
    uint8_t* const row = &rows[i * layout.bytes()];
    if (layout.coded()) {
      RoundLatent(layout, key, row);
    } else {
      std::memcpy(row, key, layout.latent_dim * sizeof(bf16));
    }
    std::memcpy(row + layout.rope_offset(), key + layout.latent_dim, layout.rope_dim * sizeof(bf16));
  }
  return rows;
}

// The values of one row.
inline std::vector<bf16> KeyOf(const KvRowLayout& layout, const uint8_t* row) {
  std::vector<bf16> key(layout.width());
  for (int i = 0; i < layout.latent_dim; ++i) {
    if (!layout.coded()) {
      std::memcpy(&key[i], row + i * sizeof(bf16), sizeof(bf16));
      continue;
    }
    float scale;
    std::memcpy(&scale, row + layout.scale_offset() + i / layout.group * sizeof(scale), sizeof(scale));
    key[i] = KvCodes<DType::kF8E4M3>::Value(row[i], scale);
  }
  std::memcpy(&key[layout.latent_dim], row + layout.rope_offset(), layout.rope_dim * sizeof(bf16));
  return key;
}

}  // namespace foredraft
