#ifndef FOREDRAFT_KERNELS_CUDA_PACKED_WEIGHT_H_
#define FOREDRAFT_KERNELS_CUDA_PACKED_WEIGHT_H_

// The GPU's layout of a weight [n, k]: as the checkpoint has it, n rows of k adjacent elements, no padding
// between rows; the base is 256-byte aligned. Where a row is no multiple of 16 bytes (tiny models), vector
// loads and TMA are out: kernels then take their slow path, which the weight's shape decides, never the rows.
//
// FP8 has one scale, a float multiplier, per 128 x 128 block: [ceil(n / 128), ScalePitch(k)], the layout that
// cuBLASLt calls BLK128x128; what a row of scales has past ceil(k / 128) is zero. A weight whose blocks are
// of another size, or whose stacked parts meet inside a block, cannot keep its grid: it is dequantised and
// rounded to BF16 once, when packed, and its dtype says so. (All of R1's shapes keep theirs.)
//
// An array of weights is one allocation: item i stands i * data_stride bytes (i * scale_stride floats) after
// item 0.

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/device.h"
#include "kernels/tensor.h"

namespace foredraft {

inline constexpr int32_t kScaleBlock = 128;

// Floats from one row of block scales to the next: cuBLASLt wants them 16-byte aligned.
constexpr int32_t ScalePitch(int32_t k) { return ((k + kScaleBlock - 1) / kScaleBlock + 3) / 4 * 4; }

struct WeightLayout {
  int32_t n = 0;
  int32_t k = 0;
  DType dtype = DType::kBF16;  // as packed

  bool operator==(const WeightLayout&) const = default;

  int64_t data_bytes() const { return int64_t{n} * k * static_cast<int64_t>(DTypeBytes(dtype)); }
  // From one item of an array to the next, in bytes.
  int64_t data_stride() const { return (data_bytes() + 255) / 256 * 256; }
  // Of one item, in floats; 0 where there are none.
  int64_t scale_stride() const {
    const int64_t rows = (int64_t{n} + kScaleBlock - 1) / kScaleBlock;
    return dtype == DType::kF8E4M3 ? rows * ScalePitch(k) : 0;
  }

  // Item `index` of an array whose first item is `first`.
  PackedWeight Item(const PackedWeight& first, int64_t index) const;
};

// Of the parts stacked along n. INVALID_ARGUMENT names what does not fit together.
absl::StatusOr<WeightLayout> LayoutOf(std::span<const HostWeight> parts);

// Copies the parts to `weight`, whose memory is there. The host's bytes are free when this returns.
void UploadWeight(CudaStream& stream, const WeightLayout& layout, std::span<const HostWeight> parts,
                  const PackedWeight& weight);

}  // namespace foredraft

#endif  // FOREDRAFT_KERNELS_CUDA_PACKED_WEIGHT_H_
