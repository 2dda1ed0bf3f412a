#pragma once

// What all backends do with the parts of a weight before they pack them: checks, and the order of 4-bit
// codes.

#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/device.h"

namespace foredraft {

inline bool IsF8(const HostWeight& part) { return part.dtype == DType::kF8E4M3; }
inline bool Is4Bit(const HostWeight& part) { return Is4Bit(part.dtype); }
inline bool IsQuantised(const HostWeight& part) { return IsF8(part) || Is4Bit(part); }

inline absl::Status CheckGroups(const HostWeight& part) {
  const char* const dtype = DTypeName(part.dtype);
  if (part.group_scales == nullptr) {
    return absl::InvalidArgumentError(absl::StrFormat("weight: %s without group scales", dtype));
  }
  if (part.group < 8 || part.group > kMaxGroup || part.group % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "weight: %s in groups of %d, allowed multiples of 8 up to %d", dtype, part.group, kMaxGroup));
  }
  if (part.k % part.group == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "weight: %s with %d inputs, allowed multiples of its group, %d", dtype, part.k, part.group));
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
    const bool quantised = IsQuantised(part) || IsQuantised(parts[0]);
    if (quantised && part.dtype != parts[0].dtype) {
      return absl::InvalidArgumentError(absl::StrFormat("weight: stacked parts are %s and %s",
                                                        DTypeName(parts[0].dtype), DTypeName(part.dtype)));
    }
    if (IsF8(part) && (part.scale_inv == nullptr || part.block_n < 1 || part.block_k < 1)) {
      return absl::InvalidArgumentError("weight: F8_E4M3 without block scales");
    }
    if (Is4Bit(part)) RETURN_IF_ERROR(CheckGroups(part));
  }
  return absl::OkStatus();
}

// Four bytes of codes in a checkpoint's order, the first of a pair in the low nibble, with the firsts in the
// lower half of the word and the seconds in the upper one: a shift by 4 q leaves pair q in the low nibbles of
// the halves.
constexpr uint32_t OctetWord(uint32_t codes) {
  const auto gather = [](uint32_t nibbles) {  // the low nibbles of four bytes
    nibbles &= 0x0f0f0f0fu;
    nibbles = (nibbles | nibbles >> 4) & 0x00ff00ffu;
    return (nibbles | nibbles >> 8) & 0xffffu;
  };
  return gather(codes) | gather(codes >> 4) << 16;
}

// INVALID_ARGUMENT if stacked parts of a 4-bit kind have different groups.
inline absl::Status CheckSameGroups(std::span<const HostWeight> parts) {
  for (const HostWeight& part : parts) {
    if (!Is4Bit(part) || part.group == parts[0].group) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("weight: stacked parts have scale blocks of %d and %d", parts[0].group, part.group));
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT if item `index` of an array of weights differs from the first in shape, dtype or group.
template <class Weight>
absl::Status CheckArrayItem(int index, const Weight& item, const Weight& first) {
  if (item.n == first.n && item.k == first.k && item.dtype == first.dtype) {
    if (item.group == first.group) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrFormat(
        "weight %d of an array has groups of %d, the first of %d", index, item.group, first.group));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("weight %d of an array is [%d, %d] %s, the first [%d, %d] %s", index, item.n, item.k,
                      DTypeName(item.dtype), first.n, first.k, DTypeName(first.dtype)));
}

}  // namespace foredraft
