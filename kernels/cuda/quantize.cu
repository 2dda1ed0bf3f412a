#include "kernels/cuda/ptx.h"
#include "kernels/cuda/quantize.h"
#include "kernels/cuda/quantize_vec4.h"

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
};

// Block (r, b) quantises groups [8 b, 8 b + 8) of row r.
template <bool aligned>
__global__ void __launch_bounds__(32 * kGroupsPerBlock)
    QuantizeKernel(const __grid_constant__ QuantizeParams p) {
  GridDependencySync();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  if (p.row_count != nullptr && row >= *p.row_count) return;
  const int32_t first = FirstColumnOfThread();
  if (first / kQuantGroup * kQuantGroup >= p.x.cols) return;
  const int32_t x_row = p.x_rows != nullptr ? p.x_rows[row] : row;
  const Vec4 x = first < p.x.cols ? LoadVec4<aligned>(p.x.row(x_row), first, p.x.cols) : Vec4{};
  StoreQuantized(p.out, row, first, x);
}

struct CopyQuantizedParams {
  QuantizedRows out;
  QuantizedRows x;
  const int32_t* x_rows;     // or null
  const int32_t* row_count;  // or null
};

// A block per row.
__global__ void __launch_bounds__(kCopyThreads)
    CopyQuantizedKernel(const __grid_constant__ CopyQuantizedParams p) {
  GridDependencySync();
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  if (p.row_count != nullptr && row >= *p.row_count) return;
  const int64_t x_row = p.x_rows != nullptr ? p.x_rows[row] : row;
  const int32_t thread = static_cast<int32_t>(threadIdx.x);
  const auto* const from = reinterpret_cast<const uint4*>(p.x.codes + x_row * p.x.pitch);
  auto* const to = reinterpret_cast<uint4*>(p.out.codes + row * p.out.pitch);
  for (int32_t i = thread; i < (p.out.cols + 15) / 16; i += kCopyThreads) to[i] = from[i];
  for (int32_t group = thread; group < (p.out.cols + kQuantGroup - 1) / kQuantGroup; group += kCopyThreads) {
    p.out.scales[group * p.out.scale_pitch + row] = p.x.scales[group * p.x.scale_pitch + x_row];
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
  const LaunchShape shape = {.grid = dim3(rows, (groups + kGroupsPerBlock - 1) / kGroupsPerBlock),
                             .block = dim3(32 * kGroupsPerBlock)};
  Launch(stream, IsVec4Aligned(x) ? QuantizeKernel<true> : QuantizeKernel<false>, shape,
         QuantizeParams{.out = out, .x = x, .x_rows = x_rows, .row_count = row_count});
}

void CopyQuantizedRows(Stream& stream, const QuantizedRows& out, const QuantizedRows& x,
                       const int32_t* x_rows, const int32_t* row_count, int32_t rows) {
  Launch(stream, &CopyQuantizedKernel, {.grid = dim3(rows), .block = dim3(kCopyThreads)},
         CopyQuantizedParams{.out = out, .x = x, .x_rows = x_rows, .row_count = row_count});
}

}  // namespace foredraft::cuda
