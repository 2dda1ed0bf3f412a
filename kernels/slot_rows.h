#pragma once

// Rows of a forward by position: the rows of a slot are adjacent, in ascending order of position. For host
// and device code.

#include <cstdint>

#include "kernels/tensor.h"

namespace foredraft {

// The row of the same slot at `position`, which is at most the row's own; -1 if it is not in this forward.
constexpr int64_t RowAt(const RowIndex& index, int64_t row, int32_t position) {
  const int64_t at = row - (index.positions[row] - position);
  return at >= 0 && index.slots[at] == index.slots[row] && index.positions[at] == position ? at : -1;
}

}  // namespace foredraft
