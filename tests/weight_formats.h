#pragma once

#include "kernels/weight_format.h"

namespace foredraft {

// The format of these codes as a checkpoint has it.
inline WeightFormat FileFormatOf(DType code) {
  for (const NamedFormat& row : kNamedFormats) {
    if (row.format.code == code) return row.format;
  }
  return {.code = code};
}

// The format of these codes as devices hold it; 4-bit kinds with `group` inputs to a scale. E2M1 in groups of
// 16 is NVFP4.
inline WeightFormat FormatOf(DType code, int32_t group = 32) {
  if (code == DType::kF4E2M1 && group == kNvfp4Format.columns) return kNvfp4Format;
  WeightFormat format = WithWideScales(FileFormatOf(code));
  if (Is4Bit(code)) format.columns = group;
  return format;
}

}  // namespace foredraft
