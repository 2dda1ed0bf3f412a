#pragma once

// How the elements of a weight [n, k] are stored: codes, and the factors that make them values. The same
// words from a checkpoint (engine/checkpoint/formats) to the kernels (PackedWeight).

#include <cstdint>
#include <string_view>

#include "kernels/dtype.h"

namespace foredraft {

struct WeightFormat {
  DType code = DType::kBF16;  // kBF16 and kF32: the values themselves
  int32_t rows = 0;           // outputs x inputs that share a scale; 0 x 0: no scales
  int32_t columns = 0;
  DType scale = DType::kF32;  // element type of the scales, which multiply
  bool tensor_scale = false;  // another factor, FP32, of the whole weight

  bool operator==(const WeightFormat&) const = default;

  constexpr bool has_scales() const { return columns > 0; }
  // The grid of scales of a weight [n, k]: row-major, so one row of it after another.
  constexpr int64_t scale_rows(int64_t n) const { return (n + rows - 1) / rows; }
  constexpr int64_t scale_columns(int64_t k) const { return (k + columns - 1) / columns; }
  constexpr int64_t scale_count(int64_t n, int64_t k) const {
    return has_scales() ? scale_rows(n) * scale_columns(k) : 0;
  }
  // Two 4-bit codes share a byte, so `count` is even for them.
  constexpr int64_t code_bytes(int64_t count) const {
    return Is4Bit(code) ? count / 2 : count * static_cast<int64_t>(DTypeBytes(code));
  }
};

inline constexpr WeightFormat kBf16Format = {.code = DType::kBF16};
// Blocks of 128 x 128 as DeepSeek-V3 has them, and as DeepSeek-V4 does, whose scales are powers of two.
inline constexpr WeightFormat kFp8Format = {
    .code = DType::kF8E4M3, .rows = 128, .columns = 128, .scale = DType::kF32};
inline constexpr WeightFormat kFp8E8m0Format = {
    .code = DType::kF8E4M3, .rows = 128, .columns = 128, .scale = DType::kE8M0};
// Symmetric codes with a scale per `group` inputs.
constexpr WeightFormat Int4Format(int32_t group) {
  return {.code = DType::kInt4, .rows = 1, .columns = group, .scale = DType::kBF16};
}
inline constexpr WeightFormat kInt4Format = Int4Format(32);  // what K2-Thinking has
inline constexpr int32_t kInt4Groups[] = {32, 64, 128};      // that checkpoints have and kernels scale
inline constexpr WeightFormat kMxfp4Format = {
    .code = DType::kF4E2M1, .rows = 1, .columns = 32, .scale = DType::kE8M0};
// A code times its E4M3 scale is exactly a BF16 value: at most 6 significant bits, 2^-10 to 2688.
inline constexpr WeightFormat kNvfp4Format = {
    .code = DType::kF4E2M1, .rows = 1, .columns = 16, .scale = DType::kF8E4M3, .tensor_scale = true};

// The formats that users name: `foredraft synth --dtype`, `quantize --dtype`, `info` and the numerics class.
struct NamedFormat {
  const char* name;
  WeightFormat format;
};
inline constexpr NamedFormat kNamedFormats[] = {{"bf16", kBf16Format},
                                                {"fp8", kFp8Format},
                                                {"int4", kInt4Format},
                                                {"fp4", kMxfp4Format},
                                                {"nvfp4", kNvfp4Format}};

// Null where no row has the name.
constexpr const NamedFormat* FindFormat(std::string_view name) {
  for (const NamedFormat& row : kNamedFormats) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// The name of a format, whatever its group and the type of its scales.
constexpr const char* NameOf(const WeightFormat& format) {
  for (const NamedFormat& row : kNamedFormats) {
    if (row.format.code == format.code && row.format.tensor_scale == format.tensor_scale) return row.name;
  }
  return "";
}

// The type of scales that kernels multiply codes by.
constexpr DType KernelScale(const WeightFormat& format) {
  if (format.tensor_scale) return DType::kF8E4M3;
  return Is4Bit(format.code) ? DType::kBF16 : DType::kF32;
}
// Whether a backend has products of the format: 4-bit codes with scales for groups of a row, FP8 with any
// blocks. NVFP4 alone has a tensor scale.
constexpr bool HasKernels(const WeightFormat& format) {
  if (!format.has_scales()) return !Is4Bit(format.code);
  if (format.tensor_scale) return format == kNvfp4Format;
  return format.scale == KernelScale(format) && (!Is4Bit(format.code) || format.rows == 1);
}

// The format as HostWeight and PackedWeight hold it: E8M0 scales become FP32 for FP8 codes and BF16 for 4-bit
// ones, both exactly.
constexpr WeightFormat WithWideScales(WeightFormat format) {
  if (format.scale == DType::kE8M0) format.scale = KernelScale(format);
  return format;
}

constexpr bool Is4Bit(const WeightFormat& format) { return Is4Bit(format.code); }
constexpr bool IsF8(const WeightFormat& format) { return format.code == DType::kF8E4M3; }
constexpr bool IsQuantised(const WeightFormat& format) { return format.has_scales(); }

}  // namespace foredraft
