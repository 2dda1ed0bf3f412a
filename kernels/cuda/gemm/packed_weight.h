#pragma once

// The GPU's layout of a weight [n, k]. 4-bit kinds have tiles with their scales
// (kernels/cuda/gemm/weight_4bit.h). The layout of the others is the checkpoint's: n rows of k adjacent
// elements, no padding between rows; the base is 256-byte aligned. If a row is not a multiple of 16 bytes
// (tiny models), kernels cannot use vector loads or TMA and take a slow path. The weight's shape alone
// decides that, never the row count.
//
// FP8 has one scale, a float multiplier, per 128 x 128 block: [ceil(n / 128), ScalePitch(k)], cuBLASLt's
// layout BLK128x128; a row of scales is zero past ceil(k / 128). If the checkpoint's blocks have another
// size, or stacked parts meet inside a block, the grid cannot be kept: the weight is then dequantised to BF16
// when packed, and its code is kBF16. (All of R1's shapes keep their grid.) Parts of tensors are packed as
// the whole tensors would be.
//
// An array of weights is one allocation: item i is i * data_stride bytes (i * scale_stride floats) after item
// 0.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/gemm/weight_4bit.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

class CudaStream;

inline constexpr int32_t kScaleBlock = 128;

// Floats from one row of block scales to the next: cuBLASLt requires 16-byte alignment.
constexpr int32_t ScalePitch(int32_t k) { return ((k + kScaleBlock - 1) / kScaleBlock + 3) / 4 * 4; }

// Formats with scales that a kernel reads (weight_kind.cu); weights of others are refused.
constexpr bool HasLayout(const WeightFormat& format) { return IsF8(format) || Is4BitLayout(format); }

struct WeightLayout {
  int32_t n = 0;
  int32_t k = 0;
  WeightFormat format;  // as packed

  bool operator==(const WeightLayout&) const = default;

  int64_t data_bytes() const {
    if (Is4Bit(format)) return Layout4Bit{n, k, format.columns}.bytes();
    return format.code_bytes(int64_t{n} * k);
  }
  // Bytes from one item of an array to the next.
  int64_t data_stride() const { return (data_bytes() + 255) / 256 * 256; }
  // Floats from one item's scales to the next; 0 without scales.
  int64_t scale_stride() const {
    const int64_t rows = (int64_t{n} + kScaleBlock - 1) / kScaleBlock;
    return IsF8(format) ? rows * ScalePitch(k) : 0;
  }

  // Item `index` of an array whose first item is `first`.
  PackedWeight Item(const PackedWeight& first, int64_t index) const;
};

// INVALID_ARGUMENT names codes, or a group of a 4-bit kind, that no kernel supports.
absl::Status CheckGroup(const WeightFormat& format);

// The layout of the parts stacked along n. INVALID_ARGUMENT names a mismatch.
absl::StatusOr<WeightLayout> LayoutOf(std::span<const HostWeight> parts);

// Copy the parts to `weight`, whose memory is allocated: of a 4-bit kind a tile at a time, of the others a
// part at a time. The caller may reuse the host memory afterwards.
void UploadElements(CudaStream& stream, const WeightLayout& layout, std::span<const HostWeight> parts,
                    const PackedWeight& weight);
void Upload4Bit(CudaStream& stream, const WeightLayout& layout, std::span<const HostWeight> parts,
                const PackedWeight& weight);

}  // namespace foredraft
