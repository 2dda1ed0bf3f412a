#pragma once

// The rows of a product's input as its tiles read them. With DeviceOptions::int8_inputs a weight of 4-bit
// codes reads rows that are rounded to 8 bits (int8_group.h), and the rows are rounded once for all tiles, by
// the threads of the pool. Otherwise tiles read the BF16 rows.
//
// For each group of inputs that share a scale of the weight, in FP32:
//
//   scale = amax / 127
//   code  = x * (127 / amax), to the nearest integer, ties to even
//
// A group whose amax is below kSmallestInt8Amax is all zero, because 127 / amax may be infinite. A group with
// an element that is not finite has the scale NaN and codes 0: all outputs of the row are NaN then, which
// argmax and sample report. A row's codes depend on the row, and on the weight's groups and codes, alone.

#include <cstdint>

#include "kernels/cpu/device/cpu_stream.h"
#include "kernels/tensor.h"

namespace foredraft::cpu {

inline constexpr float kSmallestInt8Amax = 0x1p-100f;

class TileInputs {
 public:
  // Rows [0, rows) of x, which outlives this. The rounded rows are in memory of the calling thread, which its
  // next TileInputs overwrites.
  TileInputs(const CpuContext& context, const PackedWeight& weight, Matrix<const bf16> x, int64_t rows);

  bool rounded() const { return rounded_ != nullptr; }
  // Row r for GemmTileArgs::x.
  const uint16_t* row(int64_t r) const {
    return rounded_ != nullptr ? rounded_ + r * row_elements_ : &x_.row(r)->bits;
  }

 private:
  const Matrix<const bf16> x_;
  const uint16_t* rounded_ = nullptr;
  int64_t row_elements_ = 0;  // from a rounded row to the next
};

}  // namespace foredraft::cpu
