#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/dense/quantize.h"
#include "kernels/cuda/dense/quantize_vec4.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

constexpr int kGroupsPerBlock = 8;  // a warp each
constexpr int kCopyThreads = 256;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

struct QuantizeParams {
  QuantizedRows out;
  Matrix<const bf16> x;
  const int32_t* x_rows;     // or null
  const int32_t* row_count;  // or null
  int32_t rows;
};

// Block (r, b) quantises groups [8 b, 8 b + 8) of rows r, r + gridDim.x ...; it loads a row while it
// quantises the one before.
template <bool aligned>
__global__ void __launch_bounds__(32 * kGroupsPerBlock)
    QuantizeKernel(const __grid_constant__ QuantizeParams p) {
  GridDependencySync();
  const int32_t first = FirstColumnOfThread();
  if (first / kQuantGroup * kQuantGroup >= p.x.cols) return;
  const int32_t rows = p.row_count != nullptr ? *p.row_count : p.rows;
  const auto load = [&](int32_t row) {
    if (row >= rows || first >= p.x.cols) return Vec4{};
    const int32_t x_row = p.x_rows != nullptr ? p.x_rows[row] : row;
    return LoadVec4<aligned>(p.x.row(x_row), first, p.x.cols);
  };
  const int32_t stride = static_cast<int32_t>(gridDim.x);
  int32_t row = static_cast<int32_t>(blockIdx.x);
  Vec4 next = load(row);
  for (; row < rows; row += stride) {
    const Vec4 x = next;
    next = load(row + stride);
    StoreQuantized(p.out, row, first, x);
  }
}

struct CopyKernelParams {
  QuantizedRows out;
  QuantizedRows x;
  const int32_t* x_rows;     // or null
  const int32_t* row_count;  // or null
  int32_t rows;
  int32_t part_count = 1;
};

// Block i copies items i, i + gridDim.x ...: a row of a part each.
__global__ void __launch_bounds__(kCopyThreads)
    CopyQuantizedKernel(const __grid_constant__ CopyKernelParams p) {
  GridDependencySync();
  const int32_t rows = p.row_count != nullptr ? *p.row_count : p.rows;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const int32_t width = p.out.cols / p.part_count;
  const int32_t vectors = (width + 15) / 16;
  const int32_t groups = (width + kQuantGroup - 1) / kQuantGroup;
  const int32_t items = rows * p.part_count;
  for (int32_t item = static_cast<int32_t>(blockIdx.x); item < items;
       item += static_cast<int32_t>(gridDim.x)) {
    const int64_t part = item / rows, row = item % rows;
    const int64_t x_row = p.x_rows != nullptr ? p.x_rows[item] : item;
    const auto* const from = reinterpret_cast<const uint4*>(p.x.codes + x_row * p.x.pitch);
    auto* const to = reinterpret_cast<uint4*>(p.out.codes + row * p.out.pitch + part * width);
#pragma unroll 2
    for (int32_t i = thread; i < vectors; i += kCopyThreads) to[i] = from[i];
#pragma unroll 1
    for (int32_t group = thread; group < groups; group += kCopyThreads) {
      p.out.scales[(part * groups + group) * p.out.scale_pitch + row * p.out.scale_stride] =
          p.x.scales[group * p.x.scale_pitch + x_row * p.x.scale_stride];
    }
  }
}

}  // namespace

QuantizedShape::QuantizedShape(int32_t rows, int32_t k)
    : rows(rows),
      k(k),
      pitch(RoundUp(k, 16)),
      scale_pitch(RoundUp(rows, 4)),
      code_bytes(RoundUp(scale_pitch * pitch, 1024)),
      bytes(code_bytes + scale_pitch * ((k + kQuantGroup - 1) / kQuantGroup) * int64_t{sizeof(float)}) {}

QuantizedRows QuantizedShape::View(void* memory) const {
  auto* codes = static_cast<uint8_t*>(memory);
  return {codes, reinterpret_cast<float*>(codes + code_bytes), rows, k, pitch, scale_pitch};
}

void QuantizeRows(Stream& stream, const QuantizedRows& out, Matrix<const bf16> x, const int32_t* x_rows,
                  const int32_t* row_count, int32_t rows) {
  const uint32_t groups = static_cast<uint32_t>((x.cols + kQuantGroup - 1) / kQuantGroup);
  const uint32_t blocks = (groups + kGroupsPerBlock - 1) / kGroupsPerBlock;
  const LaunchShape shape = {.grid = dim3(BlocksForRows(stream, rows, blocks, row_count), blocks),
                             .block = dim3(32 * kGroupsPerBlock)};
  Launch(stream, IsVec4Aligned(x) ? QuantizeKernel<true> : QuantizeKernel<false>, shape,
         QuantizeParams{.out = out, .x = x, .x_rows = x_rows, .row_count = row_count, .rows = rows});
}

void CopyQuantizedRows(Stream& stream, const QuantizedRows& out, const QuantizedRows& x,
                       const int32_t* x_rows, const int32_t* row_count, int32_t rows) {
  Launch(stream, &CopyQuantizedKernel,
         {.grid = dim3(BlocksForRows(stream, rows, 1, row_count)), .block = dim3(kCopyThreads)},
         CopyKernelParams{.out = out, .x = x, .x_rows = x_rows, .row_count = row_count, .rows = rows});
}

void CopyQuantized(Stream& stream, const CopyQuantizedParams& p) {
  if (p.out.rows == 0) return;
  Launch(stream, &CopyQuantizedKernel,
         {.grid = dim3(BlocksForRows(stream, p.out.rows * p.part_count, 1, nullptr)),
          .block = dim3(kCopyThreads)},
         CopyKernelParams{.out = p.out, .x = p.x, .rows = p.out.rows, .part_count = p.part_count});
}

}  // namespace foredraft::cuda
