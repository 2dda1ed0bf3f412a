#pragma once

// Which tokens the rows of a forward may choose (docs/structured-output.md section 5). Shared by the
// backends.

#include <cstdint>

namespace foredraft {

constexpr int32_t MaskWordCount(int32_t vocab_size) { return (vocab_size + 31) / 32; }

// `mask`: of one row; null allows every token.
constexpr bool MaskAllows(const uint32_t* mask, int32_t token) {
  return mask == nullptr || (mask[token / 32] >> (token % 32) & 1u) != 0;
}

struct RowMasks {
  // [masks, MaskWordCount(V)]: token v is allowed where bit v % 32 of word v / 32 is set.
  const uint32_t* words = nullptr;
  const int32_t* of_row = nullptr;      // [R]: the row's mask; -1: none. Null: no row has one
  const uint32_t* of_others = nullptr;  // the mask of rows without their own; null: every token

  constexpr const uint32_t* Of(int32_t row, int32_t vocab_size) const {
    if (of_row == nullptr || of_row[row] < 0) return of_others;
    return words + static_cast<int64_t>(of_row[row]) * MaskWordCount(vocab_size);
  }
};

}  // namespace foredraft
