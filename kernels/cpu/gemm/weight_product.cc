// The products of the CPU: a row per kind of codes. A format whose codes have no row here cannot be packed.

#include <algorithm>
#include <bit>
#include <cstdint>

#include "base/check.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/gemm/gemm_driver.h"
#include "kernels/cpu/gemm/int8_group.h"
#include "kernels/rules/weight_segments.h"

namespace foredraft::cpu {
namespace {

// The values of the 4-bit codes, which BF16 holds exactly.
struct CodeTable {
  uint16_t bits[16];
};
constexpr CodeTable MakeCodeTable(DType dtype) {
  CodeTable table{};
  for (int code = 0; code < 16; ++code) table.bits[code] = ToBf16(Code4ToFloat(dtype, code)).bits;
  return table;
}
constexpr CodeTable kInt4Table = MakeCodeTable(DType::kInt4);
constexpr CodeTable kF4E2M1Table = MakeCodeTable(DType::kF4E2M1);

// The tile of an NVFP4 weight on instruction sets without IsaKernels::gemm_nvfp4: pieces of k are decoded to
// BF16 in the first-level cache and multiplied by the BF16 tile kernel. A code times its group's scale is
// exactly a BF16 value, so groups leave no trace in the sums. An output is the sum, in order, of the BF16
// kernel's sums over pieces of kNvfp4Piece inputs, times the tensor scale. A row's bits do not depend on the
// rows beside it, because the BF16 kernel's do not.
//
// A panel (kernels/cpu/gemm/packed_weight.h) begins with the tensor scales of its 32 outputs in FP32, so that
// parts with different ones can be stacked at any row; GemmTileArgs::scales points to them. A group has codes
// as other 4-bit kinds, and 32 scales in E4M3.
constexpr int32_t kNvfp4Group = kNvfp4Format.columns;
constexpr int32_t kNvfp4Piece = 256;                                               // 16 KB decoded
constexpr int64_t kNvfp4GroupBytes = kNvfp4Group / 2 * kPanelWidth + kPanelWidth;  // codes, then scales

void ComputeNvfp4Tile(const IsaKernels& isa, const GemmTileArgs& args) {
  alignas(64) uint32_t pairs[kNvfp4Piece / 2 * kPanelWidth];
  alignas(64) float sums[kMaxTileRows * kPanelWidth];
  const uint16_t* x[kMaxTileRows];
  const int32_t values = args.rows * kPanelWidth;
  for (int32_t first = 0; first < args.k; first += kNvfp4Piece) {
    const int32_t len = std::min(kNvfp4Piece, args.k - first);
    isa.decode_nvfp4({.pairs = pairs,
                      .groups = args.panel + first / kNvfp4Group * kNvfp4GroupBytes,
                      .count = len / kNvfp4Group});
    for (int32_t row = 0; row < args.rows; ++row) x[row] = args.x[row] + first;
    isa.gemm_bf16({.tile = first == 0 ? args.tile : sums,
                   .x = x,
                   .panel = reinterpret_cast<const unsigned char*>(pairs),
                   .scales = nullptr,
                   .table = nullptr,
                   .rows = args.rows,
                   .k = len,
                   .block_k = len});
    for (int32_t i = 0; first > 0 && i < values; ++i) args.tile[i] += sums[i];
  }
  for (int32_t i = 0; i < values; ++i) args.tile[i] *= args.scales[i % kPanelWidth];
}

struct ProductRow {
  DType code;
  bool tensor_scale;
  WeightProduct product;
  WeightProduct int8_product = nullptr;  // with rows that are rounded to 8 bits
};

template <Int8Codes codes>
void Int8Product(const IsaKernels& isa, GemmTileArgs& args) {
  isa.gemm_int8(args, codes);
}

constexpr ProductRow kProducts[] = {
    {DType::kBF16, false, [](const IsaKernels& isa, GemmTileArgs& args) { isa.gemm_bf16(args); }},
    {DType::kF8E4M3, false, [](const IsaKernels& isa, GemmTileArgs& args) { isa.gemm_f8(args); }},
    {DType::kInt4, false,
     [](const IsaKernels& isa, GemmTileArgs& args) {
       args.table = kInt4Table.bits;
       isa.gemm_4bit(args);
     },
     Int8Product<Int8Codes::kInt4>},
    {DType::kF4E2M1, false,
     [](const IsaKernels& isa, GemmTileArgs& args) {
       args.table = kF4E2M1Table.bits;
       isa.gemm_4bit(args);
     },
     Int8Product<Int8Codes::kF4E2M1>},
    {DType::kF4E2M1, true,
     [](const IsaKernels& isa, GemmTileArgs& args) {
       args.table = kF4E2M1Table.bits;
       isa.gemm_nvfp4 != nullptr ? isa.gemm_nvfp4(args) : ComputeNvfp4Tile(isa, args);
     },
     Int8Product<Int8Codes::kNvfp4>},
};

// The product of a format that HasKernels takes.
WeightProduct ProductOf(const WeightFormat& format, bool rounded) {
  for (const ProductRow& row : kProducts) {
    if (row.code != format.code || row.tensor_scale != format.tensor_scale) continue;
    return rounded ? row.int8_product : row.product;
  }
  CHECK(false) << "no product of " << DTypeName(format.code);
  return nullptr;
}

// tiles[0] = tiles[0] + (tiles[1] + ... (+ tiles[count - 1])) for 2 to 4 tiles of `values` sums, in one pass.
FOREDRAFT_WIDE void AddTiles(float* const* tiles, int32_t count, int32_t values) {
  float* const __restrict a = tiles[0];
  const float* const __restrict b = tiles[1];
  if (count == 2) {
    for (int32_t i = 0; i < values; ++i) a[i] += b[i];
    return;
  }
  const float* const __restrict c = tiles[2];
  if (count == 3) {
    for (int32_t i = 0; i < values; ++i) a[i] += b[i] + c[i];
    return;
  }
  const float* const __restrict d = tiles[3];
  for (int32_t i = 0; i < values; ++i) a[i] += b[i] + (c[i] + d[i]);
}

}  // namespace

PanelProduct::PanelProduct(const IsaKernels& isa, const PackedWeight& weight, int64_t panel, bool rounded)
    : isa_(isa),
      product_(ProductOf(weight.format, rounded)),
      segments_(std::max(weight.segments, 1)),
      first_output_(static_cast<int32_t>(panel * kPanelWidth)),
      outputs_(std::min(weight.n - first_output_, kPanelWidth)) {
  const PackedHeader& header = HeaderOf(weight);
  const Panel packed = PanelOf(weight, panel);
  first_.panel = packed.data;
  first_.scales = packed.scales;
  int64_t bytes = header.panel_bytes;
  if (weight.format.tensor_scale) {
    constexpr int64_t kTensorScaleBytes = kPanelWidth * sizeof(float);
    first_.scales = reinterpret_cast<const float*>(packed.data);
    first_.panel += kTensorScaleBytes;
    bytes -= kTensorScaleBytes;
  }
  first_.k = weight.k / segments_;
  first_.block_k = std::min(header.block_k, first_.k);
  if (segments_ == 1) return;
  short_segments_ =
      isa.gemm_bf16_segments != nullptr && weight.format.code == DType::kBF16 && first_.k <= kShortSegment;
  CHECK(segments_ <= kMaxSegments && weight.k % (2 * segments_) == 0) << segments_ << " of " << weight.k;
  CHECK(!IsQuantised(weight.format) || first_.k % header.block_k == 0) << segments_ << " of " << weight.k;
  segment_bytes_ = bytes / segments_;
  segment_x_ = rounded ? first_.k / header.block_k * Int8GroupBytes(header.block_k) / 2 : first_.k;
  if (packed.scales != nullptr) segment_scales_ = int64_t{header.k_blocks} / segments_ * kPanelWidth;
}

void PanelProduct::Multiply(const uint16_t** x, int32_t rows, float* tile) const {
  GemmTileArgs args = first_;
  args.x = x;
  args.rows = rows;
  args.tile = tile;
  if (segments_ == 1) return product_(isa_, args);
  if (short_segments_ && rows <= kFewSegmentRows) return isa_.gemm_bf16_segments(args, segments_);
  // The sums of subtrees not added yet, the larger ones first. They are like the bits of a segment counter:
  // at most one of each size.
  alignas(64) float sums[3][kMaxTileRows * kPanelWidth];
  static_assert(kMaxSegments == 8);
  float* const subtrees[] = {tile, sums[0], sums[1], sums[2]};
  int32_t pending = 0;
  for (int32_t segment = 0; segment < segments_; ++segment) {
    args.tile = subtrees[pending];
    product_(isa_, args);
    const int32_t ended = std::countr_one(static_cast<uint32_t>(segment));  // subtrees
    pending -= ended;
    if (ended > 0) AddTiles(&subtrees[pending], ended + 1, rows * kPanelWidth);
    ++pending;
    args.panel += segment_bytes_;
    args.scales += segment_scales_;
    for (int32_t row = 0; row < rows; ++row) x[row] += segment_x_;
  }
}

}  // namespace foredraft::cpu
