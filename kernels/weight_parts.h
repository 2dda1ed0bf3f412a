#pragma once

// What all backends do with the parts of a weight before they pack them: checks, the order of 4-bit codes,
// and values in BF16.

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/device.h"

namespace foredraft {

inline absl::Status CheckGroups(const HostWeight& part) {
  const char* const code = DTypeName(part.format.code);
  const int32_t group = part.format.columns;
  if (part.scales == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("weight: %s without group scales", code));
  }
  if (group < 8 || group > kMaxGroup || group % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "weight: %s in groups of %d, allowed multiples of 8 up to %d", code, group, kMaxGroup));
  }
  if (part.k % group == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("weight: %s with %d inputs, allowed multiples of its group, %d", code, part.k, group));
}

// INVALID_ARGUMENT names scales that no kernel multiplies by.
inline absl::Status CheckScales(const WeightFormat& format) {
  if (HasKernels(format)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("weight: %s with %d x %d scales in %s%s, allowed %s, and for 4 bits groups of a row",
                      DTypeName(format.code), format.rows, format.columns, DTypeName(format.scale),
                      format.tensor_scale ? " and a tensor scale" : "", DTypeName(KernelScale(format))));
}

// INVALID_ARGUMENT names the missing value or the mismatch.
inline absl::Status CheckParts(std::span<const HostWeight> parts) {
  if (parts.empty()) return absl::InvalidArgumentError("weight: no parts");
  for (const HostWeight& part : parts) {
    if (part.n < 1 || part.k < 1) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weight: shape [%d, %d], allowed from [1, 1]", part.n, part.k));
    }
    if (part.k != parts[0].k) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weight: stacked parts have %d and %d inputs", parts[0].k, part.k));
    }
    const WeightFormat& format = part.format;
    const bool quantised = IsQuantised(format) || IsQuantised(parts[0].format);
    if (quantised && format.code != parts[0].format.code) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "weight: stacked parts are %s and %s", DTypeName(parts[0].format.code), DTypeName(format.code)));
    }
    if (DTypeBytes(format.code) == 1 && !Is4Bit(format) &&
        (part.scales == nullptr || format.rows < 1 || format.columns < 1)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("weight: %s without block scales", DTypeName(format.code)));
    }
    if (Is4Bit(format)) RETURN_IF_ERROR(CheckGroups(part));
    if (quantised) RETURN_IF_ERROR(CheckScales(format));
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT if stacked parts differ in their scale blocks along k, or only some have a tensor scale.
inline absl::Status CheckSameBlocks(std::span<const HostWeight> parts) {
  for (const HostWeight& part : parts) {
    if (part.format.columns == parts[0].format.columns &&
        part.format.tensor_scale == parts[0].format.tensor_scale) {
      continue;
    }
    return absl::InvalidArgumentError(absl::StrFormat("weight: stacked parts have scale blocks of %d and %d",
                                                      parts[0].format.columns, part.format.columns));
  }
  return absl::OkStatus();
}

// Reorders 8 codes of 4 bits: the even ones go to the low 16 bits, the odd ones to the high 16 bits. Pair q
// is then (word >> 4 q) & 0x000f000f.
constexpr uint32_t OctetWord(uint32_t codes) {
  const auto gather = [](uint32_t nibbles) {  // the low nibbles of four bytes
    nibbles &= 0x0f0f0f0fu;
    nibbles = (nibbles | nibbles >> 4) & 0x00ff00ffu;
    return (nibbles | nibbles >> 8) & 0xffffu;
  };
  return gather(codes) | gather(codes >> 4) << 16;
}

// The rows of a weight in BF16: an FP32 value, or a code times its scales, rounded once.
class RowsInBf16 {
 public:
  explicit RowsInBf16(const HostWeight& weight) : weight_(weight) {
    if (!weight.format.has_scales()) return;
    for (int code = 0; code < (Is4Bit(weight.format) ? 16 : 256); ++code) {
      values_[code] = CodeToFloat(weight.format.code, code);
    }
  }

  void Convert(int64_t row, bf16* out) const {
    const WeightFormat& format = weight_.format;
    const auto* const bytes =
        static_cast<const uint8_t*>(weight_.data) + format.code_bytes(row * int64_t{weight_.k});
    if (!format.has_scales()) {
      const auto* const values = reinterpret_cast<const float*>(bytes);
      std::transform(values, values + weight_.k, out, [](float x) { return ToBf16(x); });
      return;
    }
    const bool four_bits = Is4Bit(format);
    int64_t block = row / format.rows * format.scale_columns(weight_.k);
    for (int32_t first = 0; first < weight_.k; first += format.columns, ++block) {
      const float scale = weight_.scale_at(block);
      const int32_t end = std::min(weight_.k, first + format.columns);
      for (int32_t column = first; column < end; ++column) {
        const int code = four_bits ? bytes[column / 2] >> (column % 2 * 4) & 15 : bytes[column];
        out[column] = ToBf16(values_[code] * scale * weight_.tensor_scale);
      }
    }
  }

 private:
  const HostWeight weight_;  // F32 or codes
  std::array<float, 256> values_{};
};

// INVALID_ARGUMENT if item `index` of an array of weights differs from the first in shape, code or group.
template <class Weight>
absl::Status CheckArrayItem(int index, const Weight& item, const Weight& first) {
  if (item.n == first.n && item.k == first.k && item.format.code == first.format.code) {
    if (item.format == first.format) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("weight %d of an array has groups of %d, the first of %d", index, item.format.columns,
                        first.format.columns));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("weight %d of an array is [%d, %d] %s, the first [%d, %d] %s", index, item.n, item.k,
                      DTypeName(item.format.code), first.n, first.k, DTypeName(first.format.code)));
}

}  // namespace foredraft
