#pragma once

// The launch parameters of the GEMM kernels for Hopper (gemm_hopper.cu, gemm_gate_up.cu). Host code.

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/gemm/gemm_hopper_tile.h"

namespace foredraft::cuda {

// The descriptors of x and its scales, with box_rows and scale_rows as `p` has them.
inline void EncodeF8Rows(const GemmProblem& q, HopperGemmParams& p) {
  const QuantizedRows& x = q.x_f8;
  const uint64_t k = q.weight.k, rows = x.rows, pitch = x.pitch;
  p.x = EncodeTensorMap({.data = x.codes,
                         .element_bytes = 1,
                         .extent = {k, 1, rows},
                         .pitch = {pitch, pitch},
                         .box = {kTileRowBytes, 1, static_cast<uint32_t>(p.box_rows)},
                         .swizzled = true});
  const uint64_t scale_row_bytes = x.scale_pitch * sizeof(float), k_blocks = k / kScaleBlock;
  const uint64_t scales = (rows + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
  p.x_scales = EncodeTensorMap({.data = x.scales,
                                .element_bytes = sizeof(float),
                                .extent = {scales, k_blocks, 1},
                                .pitch = {scale_row_bytes, scale_row_bytes * k_blocks},
                                .box = {static_cast<uint32_t>(p.scale_rows), 1, 1},
                                .swizzled = false});
}

inline void EncodeBf16Rows(const GemmProblem& q, HopperGemmParams& p) {
  const bool grouped = q.x_group_stride != 0;
  const uint64_t row_pitch = q.x.stride * sizeof(bf16), groups = q.ranges.groups;
  p.x = EncodeTensorMap(
      {.data = q.x.data,
       .element_bytes = sizeof(bf16),
       .extent = {static_cast<uint64_t>(q.weight.k), grouped ? groups : 1, static_cast<uint64_t>(q.x.rows)},
       .pitch = {grouped ? q.x_group_stride * sizeof(bf16) : row_pitch, row_pitch},
       .box = {kTileRowBytes / sizeof(bf16), 1, static_cast<uint32_t>(p.box_rows)},
       .swizzled = true});
  p.x_grouped = grouped;
}

// The kernel multiplies 64 rows per consumer group; what shared memory holds past the box of x reaches no row
// that is stored.
template <class Tile>
HopperGemmParams MakeHopperParams(const GemmProblem& q, int32_t tile_rows) {
  CHECK(tile_rows > 0 && tile_rows % 16 == 0 && tile_rows <= Tile::kRows) << tile_rows;
  const int32_t element = static_cast<int32_t>(DTypeBytes(q.weight.format.code));
  const uint64_t k = q.weight.k, n = q.weight.n, groups = q.ranges.groups;
  const uint64_t row_bytes = k * element;

  HopperGemmParams p = {};
  // A group of ragged rows may begin at any row, but its scales are loaded from a multiple of kScaleAlignment
  // on.
  const bool ragged = q.ranges.offsets != nullptr;
  p.box_rows = ragged ? tile_rows : std::min(tile_rows, q.ranges.rows);
  p.scale_rows = ragged ? tile_rows + kScaleAlignment
                        : (p.box_rows + kScaleAlignment - 1) / kScaleAlignment * kScaleAlignment;
  p.weight = EncodeTensorMap(
      {.data = q.weight.data,
       .element_bytes = element,
       .extent = {k, n, groups},
       .pitch = {row_bytes, groups > 1 ? static_cast<uint64_t>(q.data_stride) : row_bytes * n},
       .box = {static_cast<uint32_t>(kTileRowBytes / element), Tile::kN, 1},
       .swizzled = true});
  if (q.weight.format.code == DType::kF8E4M3) {
    EncodeF8Rows(q, p);
  } else {
    EncodeBf16Rows(q, p);
  }
  p.out = q.out.data;
  p.out_bf16 = q.out_bf16.data;
  p.out_f8 = q.out_f8;
  if (q.rotated.out) {
    p.out_bf16 = q.rotated.out.data;
    p.cos_sin = q.rotated.cos_sin;
    p.slots = q.rotated.index.slots;
    p.positions = q.rotated.index.positions;
    p.head_dim = q.rotated.head_dim;
    p.rope_dim = q.rotated.rope_dim;
  }
  p.bias = q.bias;
  p.weight_scales = q.weight.scales;
  p.out_stride = q.out.stride;
  p.out_bf16_stride = q.rotated.out ? q.rotated.out.stride : q.out_bf16.stride;
  p.out_group_stride = q.out_group_stride;
  p.weight_scale_stride = q.scale_stride;
  p.weight_scale_pitch = ScalePitch(q.weight.k);
  p.n = q.weight.n;
  p.steps = static_cast<int32_t>(row_bytes / kTileRowBytes);
  p.splits = 1;
  p.segments = std::max(q.weight.segments, 1);
  p.tile_rows = tile_rows;
  p.pair_stores = (reinterpret_cast<uintptr_t>(p.out) % 8 | reinterpret_cast<uintptr_t>(p.out_bf16) % 4 |
                   p.out_stride % 2 | p.out_bf16_stride % 2 | p.out_group_stride % 2 | p.n % 2) == 0;
  p.ranges = q.ranges;
  return p;
}

// The grid for `items`: at most one block per multiprocessor.
inline dim3 HopperGrid(Stream& stream, int64_t items) {
  return ItemGrid(items, static_cast<CudaStream&>(stream).multiprocessor_count());
}

}  // namespace foredraft::cuda
