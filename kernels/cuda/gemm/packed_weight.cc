#include "kernels/cuda/gemm/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "base/status_macros.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/weight_parts.h"

namespace foredraft {
namespace {

// Whether the stacked weight's grid of scales is the parts' grids, stacked. outputs(part): the part's
// outputs.
template <class Outputs>
bool KeepsScaleGrid(std::span<const HostWeight> parts, const Outputs& outputs) {
  for (const HostWeight& part : parts) {
    if (part.format.rows != kScaleBlock || part.format.columns != kScaleBlock) return false;
    if (&part != &parts.back() && outputs(part) % kScaleBlock != 0) return false;
  }
  return true;
}

// Whether a stacked FP8 weight stays FP8. Parts of tensors stay FP8 where the whole tensors would;
// INVALID_ARGUMENT where their own grids do not allow that.
absl::StatusOr<bool> StaysF8(std::span<const HostWeight> parts) {
  const bool whole =
      KeepsScaleGrid(parts, [](const HostWeight& part) { return part.whole_n > 0 ? part.whole_n : part.n; });
  if (!whole || KeepsScaleGrid(parts, [](const HostWeight& part) { return part.n; })) return whole;
  return absl::InvalidArgumentError(absl::StrFormat(
      "weight: %d of %d outputs in FP8, allowed multiples of %d", parts[0].n, parts[0].whole_n, kScaleBlock));
}

int32_t BlocksOf(int32_t extent, int32_t block) { return (extent + block - 1) / block; }

void UploadConverted(CudaStream& stream, const HostWeight& part, unsigned char* out) {
  constexpr int64_t kPieceElements = int64_t{1} << 20;
  const int32_t rows_at_once = static_cast<int32_t>(std::max<int64_t>(1, kPieceElements / part.k));
  const RowsInBf16 rows(part);
  std::vector<bf16> piece(static_cast<size_t>(std::min(rows_at_once, part.n)) * part.k);
  for (int32_t first = 0; first < part.n; first += rows_at_once) {
    const int32_t count = std::min(rows_at_once, part.n - first);
    for (int32_t i = 0; i < count; ++i) rows.Convert(first + i, piece.data() + int64_t{i} * part.k);
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
      std::copy_n(part.f32_scales() + int64_t{block} * k_blocks, k_blocks, row);
    }
  }
  stream.CopyToDevice(const_cast<float*>(out), scales.data(), scales.size() * sizeof(float));
}

// Writes the codes and scales of one output of a tile. `row`: of the part.
void FillOutput(const Layout4Bit& layout, const HostWeight& part, int64_t row, int32_t output,
                unsigned char* tile) {
  if (layout.nvfp4()) std::memcpy(tile + output * sizeof(float), &part.tensor_scale, sizeof(float));
  tile += layout.tensor_scale_bytes();
  const auto* const codes = static_cast<const unsigned char*>(part.data) + row * (layout.k / 2);
  for (int32_t first = 0; first < layout.k; first += 32) {
    unsigned char quarter[16] = {};  // 4 octets of inputs; lane t has byte t of each
    std::memcpy(quarter, codes + first / 2, static_cast<size_t>(std::min(32, layout.k - first) / 2));
    unsigned char* const block = tile + int64_t{first / kBlock4Inputs} * layout.block_bytes();
    for (int32_t lane = 0; lane < 4; ++lane) {
      const uint32_t bytes =
          static_cast<uint32_t>(quarter[lane]) | static_cast<uint32_t>(quarter[4 + lane]) << 8 |
          static_cast<uint32_t>(quarter[8 + lane]) << 16 | static_cast<uint32_t>(quarter[12 + lane]) << 24;
      const uint32_t word = OctetWord(bytes);
      std::memcpy(block + Word4At(output, lane, first % kBlock4Inputs / 32), &word, sizeof(word));
    }
  }
  const int32_t groups = layout.k / layout.group, bytes = layout.scale_bytes();
  const auto* const scales = static_cast<const unsigned char*>(part.scales) + row * groups * bytes;
  for (int32_t group = 0; group < groups; ++group) {
    const int32_t first = group * layout.group;
    std::memcpy(tile + int64_t{first / kBlock4Inputs} * layout.block_bytes() +
                    Scale4At(output, first % kBlock4Inputs / layout.group, bytes),
                scales + group * bytes, static_cast<size_t>(bytes));
  }
}

}  // namespace

PackedWeight WeightLayout::Item(const PackedWeight& first, int64_t index) const {
  return {.data = static_cast<const unsigned char*>(first.data) + index * data_stride(),
          .scales = first.scales != nullptr ? first.scales + index * scale_stride() : nullptr,
          .n = n,
          .k = k,
          .format = format};
}

absl::Status CheckGroup(const WeightFormat& format) {
  if (!format.has_scales() || HasLayout(format)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("weight: %s in groups of %d, allowed 32, 64, 128 on backend cuda",
                      DTypeName(format.code), format.columns));
}

absl::StatusOr<WeightLayout> LayoutOf(std::span<const HostWeight> parts) {
  RETURN_IF_ERROR(CheckParts(parts));
  if (!IsF8(parts[0].format)) RETURN_IF_ERROR(CheckSameBlocks(parts));
  WeightLayout layout{.k = parts[0].k};
  for (const HostWeight& part : parts) layout.n += part.n;
  const WeightFormat& format = parts[0].format;
  RETURN_IF_ERROR(CheckGroup(format));
  bool stays = format.has_scales();
  if (IsF8(format)) {
    ASSIGN_OR_RETURN(stays, StaysF8(parts));
  }
  if (stays) layout.format = format;
  return layout;
}

void UploadElements(CudaStream& stream, const WeightLayout& layout, std::span<const HostWeight> parts,
                    const PackedWeight& weight) {
  auto* out = static_cast<unsigned char*>(const_cast<void*>(weight.data));
  for (const HostWeight& part : parts) {
    const size_t bytes = static_cast<size_t>(layout.format.code_bytes(int64_t{part.n} * part.k));
    if (part.format.code == layout.format.code) {
      stream.CopyToDevice(out, part.data, bytes);
    } else {
      UploadConverted(stream, part, out);
    }
    out += bytes;
  }
  if (weight.scales != nullptr) UploadScales(stream, layout, parts, weight.scales);
}

void Upload4Bit(CudaStream& stream, const WeightLayout& weight_layout, std::span<const HostWeight> parts,
                const PackedWeight& weight) {
  const Layout4Bit layout = {weight_layout.n, weight_layout.k, weight_layout.format.columns};
  auto* out = static_cast<unsigned char*>(const_cast<void*>(weight.data));
  std::vector<unsigned char> tile(layout.tile_bytes());
  const HostWeight* part = parts.data();
  int64_t row = 0;  // of the part
  for (int32_t index = 0; index < layout.tiles(); ++index, out += tile.size()) {
    std::fill(tile.begin(), tile.end(), uint8_t{0});
    for (int32_t output = 0; output < kTile4Outputs && part != parts.data() + parts.size(); ++output) {
      FillOutput(layout, *part, row, output, tile.data());
      if (++row == part->n) {
        ++part;
        row = 0;
      }
    }
    stream.CopyToDevice(out, tile.data(), tile.size());
  }
}

}  // namespace foredraft
