#ifndef FOREDRAFT_TESTS_OPS_KV_FIXTURE_H_
#define FOREDRAFT_TESTS_OPS_KV_FIXTURE_H_

// A paged cache with shuffled block tables. Scratch (block 0) and every unmapped row hold NaN.

#include <algorithm>
#include <numeric>
#include <vector>

#include "tests/ops/op_rig.h"

namespace foredraft {

class KvFixture {
 public:
  // `slots` sequences with `positions` random rows each.
  KvFixture(Noise& noise, int slots, int positions, int tokens_per_block, int latent_dim, int rope_dim)
      : slots_(slots), tokens_per_block_(tokens_per_block), latent_dim_(latent_dim), rope_dim_(rope_dim) {
    blocks_per_slot_ = (positions + tokens_per_block - 1) / tokens_per_block;
    const int block_count = 1 + slots * blocks_per_slot_ + 2;
    rows_.assign(static_cast<size_t>(block_count) * tokens_per_block * width(), bf16{0x7fc0});
    std::vector<int32_t> ids(block_count - 1);
    std::iota(ids.begin(), ids.end(), 1);
    for (size_t i = ids.size() - 1; i > 0; --i) std::swap(ids[i], ids[noise.Int(0, static_cast<int>(i))]);
    tables_.assign(ids.begin(), ids.begin() + slots * blocks_per_slot_);
    for (int slot = 0; slot < slots; ++slot) {
      for (int position = 0; position < positions; ++position) {
        const std::vector<bf16> row = noise.Bf16s(width());
        std::copy(row.begin(), row.end(), Row(slot, position));
      }
    }
  }

  int slot_count() const { return slots_; }
  int width() const { return latent_dim_ + rope_dim_; }
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

  KvLayer Put(OpRig& rig) const {
    return {.data = rig.Put(rows_),
            .block_tables = rig.Put(tables_),
            .table_stride = blocks_per_slot_,
            .block_count = static_cast<int32_t>(rows_.size() / (tokens_per_block_ * width())),
            .tokens_per_block = tokens_per_block_,
            .latent_dim = latent_dim_,
            .rope_dim = rope_dim_};
  }

 private:
  int slots_;
  int tokens_per_block_;
  int latent_dim_;
  int rope_dim_;
  int blocks_per_slot_;
  std::vector<bf16> rows_;       // [blocks, tokens_per_block, width]
  std::vector<int32_t> tables_;  // [slots, blocks_per_slot]
};

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_OPS_KV_FIXTURE_H_
