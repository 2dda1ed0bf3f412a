#pragma once

#include <initializer_list>

#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace foredraft {

// True where products with such a weight read rows in FP8.
inline bool ReadsF8(const PackedWeight& weight) { return IsF8(weight.format); }

// The input of products, in one form or several. A product whose weight reads a form that is absent makes
// that form from the BF16 rows, with the same bits.
struct InputRows {
  Matrix<bf16> as_bf16;  // data may be null if as_f8 is present; the shape is always set
  QuantizedRows as_f8;   // absent where the device does not quantise rows

  int32_t rows() const { return as_bf16.rows; }
  InputRows first_rows(int32_t count) const { return {as_bf16.first_rows(count), as_f8.first_rows(count)}; }
  // first: a multiple of 4.
  InputRows row_range(int32_t first, int32_t count) const;
  InputRows first_columns(int32_t count) const {
    return {as_bf16.columns(0, count), as_f8.first_columns(count)};
  }
  // The forms that `readers` read. The op that fills the result writes these forms alone.
  InputRows ReadBy(std::initializer_list<PackedWeight> readers) const;
};

}  // namespace foredraft
