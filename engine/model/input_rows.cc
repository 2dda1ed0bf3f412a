#include "engine/model/input_rows.h"

namespace foredraft {

InputRows InputRows::row_range(int32_t first, int32_t count) const {
  return {.as_bf16 = as_bf16 ? as_bf16.row_range(first, count) : as_bf16.first_rows(count),
          .as_f8 = as_f8 ? as_f8.row_range(first, count) : as_f8};
}

InputRows InputRows::ReadBy(std::initializer_list<PackedWeight> readers) const {
  bool bf16_read = false;
  bool f8_read = false;
  for (const PackedWeight& weight : readers) {
    if (weight) (ReadsF8(weight) ? f8_read : bf16_read) = true;
  }
  InputRows rows = *this;
  if (!f8_read) rows.as_f8 = {};
  if (rows.as_f8 && !bf16_read) rows.as_bf16.data = nullptr;
  return rows;
}

}  // namespace foredraft
