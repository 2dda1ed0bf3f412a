#pragma once

// Paged rows with shuffled block tables. Rows hold NaN (all bits set) until a test writes them, scratch
// included.

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "kernels/ops/attention.h"
#include "tests/ops/op_rig.h"

namespace foredraft {

template <class T>
class PagedRowsFixture {
 public:
  // `slots` sequences with memory for rows [0, row_count).
  PagedRowsFixture(int slots, int row_count, int rows_per_block, int width)
      : rows_per_block_(rows_per_block), width_(width) {
    table_stride_ = (row_count + rows_per_block - 1) / rows_per_block;
    const int blocks = 1 + slots * table_stride_;
    rows_.resize(size_t(blocks) * rows_per_block * width);
    std::fill_n(reinterpret_cast<unsigned char*>(rows_.data()), rows_.size() * sizeof(T), 0xff);
    tables_.resize(blocks - 1);
    std::iota(tables_.begin(), tables_.end(), 1);
    std::shuffle(tables_.begin(), tables_.end(), std::mt19937(7));
  }

  T* Row(int slot, int index) { return rows_.data() + Offset(slot, index); }
  void Set(int slot, int index, const T* values) { std::copy_n(values, width_, Row(slot, index)); }
  // Takes the block of the row away from the slot.
  void Unmap(int slot, int index) { tables_[slot * table_stride_ + index / rows_per_block_] = 0; }
  const std::vector<T>& rows() const { return rows_; }

  PagedRows<T> Put(OpRig& rig) const {
    return {.data = rig.Put(rows_),
            .block_tables = rig.Put(tables_),
            .table_stride = table_stride_,
            .rows_per_block = rows_per_block_,
            .width = width_};
  }
  // Reads back what ops wrote.
  void Get(OpRig& rig, const PagedRows<T>& pages) { rows_ = rig.Get(pages.data, rows_.size()); }

 private:
  size_t Offset(int slot, int index) const {
    const int32_t block = tables_[slot * table_stride_ + index / rows_per_block_];
    return (size_t(block) * rows_per_block_ + index % rows_per_block_) * width_;
  }

  int rows_per_block_;
  int width_;
  int table_stride_ = 0;
  std::vector<T> rows_;          // [blocks, rows_per_block, width]
  std::vector<int32_t> tables_;  // [slots, table_stride]
};

}  // namespace foredraft
