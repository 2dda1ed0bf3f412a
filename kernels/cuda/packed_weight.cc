#include "kernels/cuda/packed_weight.h"

#include <algorithm>
#include <array>

#include "base/status_macros.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/weight_parts.h"

namespace foredraft {
namespace {

// Whether the grid of the stacked weight is the parts' grids, stacked.
bool KeepsScaleGrid(std::span<const HostWeight> parts) {
  for (const HostWeight& part : parts) {
    if (part.block_n != kScaleBlock || part.block_k != kScaleBlock) return false;
    if (&part != &parts.back() && part.n % kScaleBlock != 0) return false;
  }
  return true;
}

int32_t BlocksOf(int32_t extent, int32_t block) { return (extent + block - 1) / block; }

// Converts one row to BF16.
void RowToBf16(const HostWeight& part, int32_t row, bf16* out) {
  const int64_t first = int64_t{row} * part.k;
  if (part.dtype == DType::kF32) {
    const auto* const in = static_cast<const float*>(part.data) + first;
    std::transform(in, in + part.k, out, ToBf16);
    return;
  }
  const auto* const codes = static_cast<const uint8_t*>(part.data) + first;
  const float* const scales = part.scale_inv + int64_t{row / part.block_n} * BlocksOf(part.k, part.block_k);
  for (int32_t i = 0; i < part.k; ++i) out[i] = ToBf16(F8E4M3ToFloat(codes[i]) * scales[i / part.block_k]);
}

void UploadConverted(CudaStream& stream, const HostWeight& part, unsigned char* out) {
  constexpr int64_t kPieceElements = int64_t{1} << 20;
  const int32_t rows_at_once = static_cast<int32_t>(std::max<int64_t>(1, kPieceElements / part.k));
  std::vector<bf16> piece(static_cast<size_t>(std::min(rows_at_once, part.n)) * part.k);
  for (int32_t first = 0; first < part.n; first += rows_at_once) {
    const int32_t count = std::min(rows_at_once, part.n - first);
    for (int32_t i = 0; i < count; ++i) RowToBf16(part, first + i, piece.data() + int64_t{i} * part.k);
    const size_t bytes = static_cast<size_t>(count) * part.k * sizeof(bf16);
    stream.CopyToDevice(out, piece.data(), bytes);
    out += bytes;
  }
}

void UploadScales(CudaStream& stream, const WeightLayout& layout, std::span<const HostWeight> parts,
                  const float* out) {
  std::vector<float> scales(layout.scale_stride(), 0.0f);
  const int32_t k_blocks = BlocksOf(layout.k, kScaleBlock);
  float* row = scales.data();
  for (const HostWeight& part : parts) {
    for (int32_t block = 0; block < BlocksOf(part.n, kScaleBlock); ++block, row += ScalePitch(layout.k)) {
      std::copy_n(part.scale_inv + int64_t{block} * k_blocks, k_blocks, row);
    }
  }
  stream.CopyToDevice(const_cast<float*>(out), scales.data(), scales.size() * sizeof(float));
}

}  // namespace

PackedWeight WeightLayout::Item(const PackedWeight& first, int64_t index) const {
  return {.data = static_cast<const unsigned char*>(first.data) + index * data_stride(),
          .scales = first.scales != nullptr ? first.scales + index * scale_stride() : nullptr,
          .n = n,
          .k = k,
          .dtype = dtype};
}

absl::Status CheckKind(DType dtype) {
  if (!Is4Bit(dtype)) return absl::OkStatus();
  return absl::UnimplementedError(
      absl::StrFormat("weight: %s: the cuda backend has no kernel for 4-bit weights, allowed BF16, F8_E4M3; "
                      "the cpu backend has "
                      "one",
                      DTypeName(dtype)));
}

absl::StatusOr<WeightLayout> LayoutOf(std::span<const HostWeight> parts) {
  RETURN_IF_ERROR(CheckParts(parts));
  RETURN_IF_ERROR(CheckKind(parts[0].dtype));
  WeightLayout layout{.k = parts[0].k};
  for (const HostWeight& part : parts) layout.n += part.n;
  if (IsF8(parts[0]) && KeepsScaleGrid(parts)) layout.dtype = DType::kF8E4M3;
  return layout;
}

void UploadWeight(CudaStream& stream, const WeightLayout& layout, std::span<const HostWeight> parts,
                  const PackedWeight& weight) {
  auto* out = static_cast<unsigned char*>(const_cast<void*>(weight.data));
  for (const HostWeight& part : parts) {
    const size_t bytes = static_cast<size_t>(part.n) * part.k * DTypeBytes(layout.dtype);
    if (part.dtype == layout.dtype) {
      stream.CopyToDevice(out, part.data, bytes);
    } else {
      UploadConverted(stream, part, out);
    }
    out += bytes;
  }
  if (weight.scales != nullptr) UploadScales(stream, layout, parts, weight.scales);
}

}  // namespace foredraft
