#pragma once

// A paged cache with shuffled block tables, in BF16 or FP8. Scratch (block 0) and every unmapped row hold
// NaN.

#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/kv_row.h"
#include "tests/ops/op_rig.h"

namespace foredraft {

// Rounds the latent [latent_dim] of a row as an FP8 cache does. Optionally writes the row's bytes.
inline void RoundLatent(const KvRowLayout& layout, bf16* latent, uint8_t* row = nullptr) {
  for (int begin = 0; begin < layout.latent_dim; begin += layout.group) {
    const int end = std::min(begin + layout.group, layout.latent_dim);
    uint32_t largest = 0;
    for (int i = begin; i < end; ++i) largest = std::max(largest, KvMagnitude(latent[i]));
    const float scale = KvCodes<DType::kF8E4M3>::Scale(largest);
    for (int i = begin; i < end; ++i) {
      const uint8_t code = KvCodes<DType::kF8E4M3>::Code(latent[i], 1.0f / scale);
      latent[i] = KvCodes<DType::kF8E4M3>::Value(code, scale);
      if (row != nullptr) row[i] = code;
    }
    if (row != nullptr) {
      std::memcpy(row + layout.scale_offset() + begin / layout.group * sizeof(float), &scale, sizeof(float));
    }
  }
}

class KvFixture {
 public:
  // `slots` sequences with `positions` random rows each; for FP8 their latents are rounded.
  KvFixture(Noise& noise, int slots, int positions, int tokens_per_block, int latent_dim, int rope_dim,
            DType dtype = DType::kBF16)
      : slots_(slots),
        tokens_per_block_(tokens_per_block),
        latent_dim_(latent_dim),
        rope_dim_(rope_dim),
        dtype_(dtype) {
    blocks_per_slot_ = (positions + tokens_per_block - 1) / tokens_per_block;
    const int block_count = 1 + slots * blocks_per_slot_ + 2;
    rows_.assign(static_cast<size_t>(block_count) * tokens_per_block * width(), bf16{0x7fc0});
    std::vector<int32_t> ids(block_count - 1);
    std::iota(ids.begin(), ids.end(), 1);
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[noise.Int(0, static_cast<int>(i))]);
    tables_.assign(ids.begin(), ids.begin() + slots * blocks_per_slot_);
    for (int slot = 0; slot < slots; ++slot) {
      for (int position = 0; position < positions; ++position) {
        std::vector<bf16> row = noise.Bf16s(width());
        if (dtype == DType::kF8E4M3) RoundLatent(Layout(dtype), row.data());
        std::copy(row.begin(), row.end(), Row(slot, position));
      }
    }
  }

  int slot_count() const { return slots_; }
  int width() const { return latent_dim_ + rope_dim_; }
  DType dtype() const { return dtype_; }
  // The values of all rows, c then k_pe, [blocks, tokens_per_block, width].
  const std::vector<bf16>& rows() const { return rows_; }
  size_t RowOffset(int slot, int position) const {
    const int32_t block = tables_[slot * blocks_per_slot_ + position / tokens_per_block_];
    return (static_cast<size_t>(block) * tokens_per_block_ + position % tokens_per_block_) * width();
  }
  bf16* Row(int slot, int position) { return &rows_[RowOffset(slot, position)]; }
  const bf16* Row(int slot, int position) const { return &rows_[RowOffset(slot, position)]; }

  // Sets positions [begin, end) of a slot to NaN.
  void Poison(int slot, int begin, int end) {
    for (int position = begin; position < end; ++position) {
      std::fill_n(Row(slot, position), width(), bf16{0x7fc0});
    }
  }

  KvLayer Put(OpRig& rig) const { return Put(rig, dtype_); }
  // Rows of an FP8 fixture have the same values in either dtype.
  KvLayer Put(OpRig& rig, KvFormat format) const {
    return {.data = rig.Put(Bytes(format.dtype)),
            .block_tables = rig.Put(tables_),
            .table_stride = blocks_per_slot_,
            .block_count = static_cast<int32_t>(row_count() / tokens_per_block_),
            .tokens_per_block = tokens_per_block_,
            .latent_dim = latent_dim_,
            .rope_dim = rope_dim_,
            .dtype = format.dtype,
            .fp8_products = format.fp8_products};
  }

  // The values of all rows of a layer on the device, as rows() has them.
  std::vector<bf16> Get(OpRig& rig, const KvLayer& layer) const {
    const KvRowLayout layout = layer.layout();
    const std::vector<uint8_t> bytes = rig.Get(layer.data, row_count() * layout.bytes());
    std::vector<bf16> rows(rows_.size());
    for (size_t r = 0; r < row_count(); ++r) {
      const uint8_t* const row = &bytes[r * layout.bytes()];
      bf16* const values = &rows[r * width()];
      std::memcpy(values + latent_dim_, row + layout.rope_offset(), rope_dim_ * sizeof(bf16));
      if (!layout.coded()) std::memcpy(values, row, latent_dim_ * sizeof(bf16));
      for (int i = 0; layout.coded() && i < latent_dim_; ++i) {
        float scale;
        std::memcpy(&scale, row + layout.scale_offset() + i / layout.group * sizeof(float), sizeof(float));
        values[i] = KvCodes<DType::kF8E4M3>::Value(row[i], scale);
      }
    }
    return rows;
  }

 private:
  KvRowLayout Layout(DType dtype) const { return {latent_dim_, rope_dim_, dtype}; }
  size_t row_count() const { return rows_.size() / width(); }

  std::vector<uint8_t> Bytes(DType dtype) const {
    const KvRowLayout layout = Layout(dtype);
    std::vector<uint8_t> bytes(row_count() * layout.bytes(), 0xff);
    for (size_t r = 0; r < row_count(); ++r) {
      uint8_t* const row = &bytes[r * layout.bytes()];
      std::vector<bf16> latent(&rows_[r * width()], &rows_[r * width()] + latent_dim_);
      if (layout.coded()) RoundLatent(layout, latent.data(), row);
      if (!layout.coded()) std::memcpy(row, latent.data(), latent_dim_ * sizeof(bf16));
      std::memcpy(row + layout.rope_offset(), &rows_[r * width()] + latent_dim_, rope_dim_ * sizeof(bf16));
    }
    return bytes;
  }

  int slots_;
  int tokens_per_block_;
  int latent_dim_;
  int rope_dim_;
  DType dtype_;
  int blocks_per_slot_;
  std::vector<bf16> rows_;       // [blocks, tokens_per_block, width]
  std::vector<int32_t> tables_;  // [slots, blocks_per_slot]
};

}  // namespace foredraft
