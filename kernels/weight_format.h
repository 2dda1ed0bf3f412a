#pragma once

// How the elements of a weight [n, k] are stored: codes, and the factors that make them values. Both the
// checkpoint's side (engine/checkpoint/formats) and the kernels' (PackedWeight) use it.

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
// Blocks of 128 x 128: DeepSeek-V3's, then DeepSeek-V4's, whose scales are powers of two.
inline constexpr WeightFormat kFp8Format = {
    .code = DType::kF8E4M3, .rows = 128, .columns = 128, .scale = DType::kF32};
inline constexpr WeightFormat kFp8E8m0Format = {
    .code = DType::kF8E4M3, .rows = 128, .columns = 128, .scale = DType::kE8M0};
// Symmetric codes with a scale per `group` inputs.
constexpr WeightFormat Int4Format(int32_t group) {
  return {.code = DType::kInt4, .rows = 1, .columns = group, .scale = DType::kBF16};
}
inline constexpr WeightFormat kInt4Format = Int4Format(32);  // what K2-Thinking has
inline constexpr int32_t kInt4Groups[] = {32, 64, 128};  // groups that checkpoints have and kernels support
inline constexpr WeightFormat kMxfp4Format = {
    .code = DType::kF4E2M1, .rows = 1, .columns = 32, .scale = DType::kE8M0};
// A code times its E4M3 scale is exactly a BF16 value: at most 6 significant bits, 2^-10 to 2688.
inline constexpr WeightFormat kNvfp4Format = {
    .code = DType::kF4E2M1, .rows = 1, .columns = 16, .scale = DType::kF8E4M3, .tensor_scale = true};

// The formats that users name: `foredraft synth --dtype`, `quantize --dtype`, `info` and the numerics class.
struct NamedFormat {
  const char* name;
  WeightFormat format;
  DType kernel_scale;             // the type of scales that kernels multiply codes by
  const char* written = nullptr;  // what `quantize` writes; null: it writes no such format
};
inline constexpr NamedFormat kNamedFormats[] = {
    {"bf16", kBf16Format, DType::kF32},
    {"fp8", kFp8Format, DType::kF32, "E4M3 in blocks of 128 x 128"},
    {"int4", kInt4Format, DType::kBF16, "compressed-tensors pack-quantized"},
    {"fp4", kMxfp4Format, DType::kBF16},
    {"nvfp4", kNvfp4Format, DType::kF8E4M3, "modelopt's, MLP projections of the target alone"}};

// The row with this name; null if there is none.
constexpr const NamedFormat* FindFormat(std::string_view name) {
  for (const NamedFormat& row : kNamedFormats) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

// The row of a format, whatever its group and the type of its scales; null where it has none.
constexpr const NamedFormat* RowOf(const WeightFormat& format) {
  for (const NamedFormat& row : kNamedFormats) {
    if (row.format.code == format.code && row.format.tensor_scale == format.tensor_scale) return &row;
  }
  return nullptr;
}
constexpr const char* NameOf(const WeightFormat& format) {
  const NamedFormat* const row = RowOf(format);
  return row != nullptr ? row->name : "";
}

// The type of scales that kernels multiply codes by.
constexpr DType KernelScale(const WeightFormat& format) {
  const NamedFormat* const row = RowOf(format);
  if (row != nullptr) return row->kernel_scale;
  return format.tensor_scale ? DType::kF8E4M3 : DType::kF32;
}
// Whether the backends have products of the format. They take 4-bit codes with scales for groups of a row,
// and 8-bit codes with any blocks; a format with a tensor scale must be the one of kNamedFormats.
constexpr bool HasKernels(const WeightFormat& format) {
  if (!format.has_scales()) return !Is4Bit(format.code);
  const NamedFormat* const row = RowOf(format);
  if (row == nullptr || format.scale != row->kernel_scale) return false;
  if (format.tensor_scale) return format == row->format;
  return !Is4Bit(format.code) || format.rows == 1;
}

// The format as HostWeight and PackedWeight hold it: E8M0 scales become equal scales of the type that kernels
// read.
constexpr WeightFormat WithWideScales(WeightFormat format) {
  if (format.scale == DType::kE8M0) format.scale = KernelScale(format);
  return format;
}

constexpr bool Is4Bit(const WeightFormat& format) { return Is4Bit(format.code); }
constexpr bool IsF8(const WeightFormat& format) { return format.code == DType::kF8E4M3; }
constexpr bool IsQuantised(const WeightFormat& format) { return format.has_scales(); }
// Whether the format has 8-bit codes with FP32 scales, each for a block of any size.
constexpr bool HasScaleGrid(const WeightFormat& format) { return format.has_scales() && !Is4Bit(format); }

}  // namespace foredraft
