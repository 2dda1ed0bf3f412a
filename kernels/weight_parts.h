#ifndef FOREDRAFT_KERNELS_WEIGHT_PARTS_H_
#define FOREDRAFT_KERNELS_WEIGHT_PARTS_H_

// What every backend asks of the parts of a weight before it packs them.

#include <span>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/device.h"

namespace foredraft {

inline bool IsF8(const HostWeight& part) { return part.dtype == DType::kF8E4M3; }

// INVALID_ARGUMENT names what is missing, or what does not fit together.
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
    if (IsF8(part) != IsF8(parts[0])) {
      return absl::InvalidArgumentError(absl::StrFormat("weight: stacked parts are %s and %s",
                                                        DTypeName(parts[0].dtype), DTypeName(part.dtype)));
    }
    if (IsF8(part) && (part.scale_inv == nullptr || part.block_n < 1 || part.block_k < 1)) {
      return absl::InvalidArgumentError("weight: F8_E4M3 without block scales");
    }
  }
  return absl::OkStatus();
}

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_WEIGHT_PARTS_H_
