#include <cuda_fp8.h>

#include "kernels/cuda/quantize.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {
namespace {

constexpr int kGroupsPerBlock = 8;  // a warp each
constexpr float kSmallestAmax = 1e-4f;
constexpr float kLargestCode = 448.0f;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

struct QuantizeParams {
  uint8_t* codes;
  float* scales;
  const bf16* x;
  const int32_t* x_rows;     // or null
  const int32_t* row_count;  // or null
  int64_t pitch;
  int64_t row_capacity;
  int64_t x_stride;
  int32_t k;
};

// Block (r, b): groups 8 b .. 8 b + 7 of row r, one per warp, four inputs per lane.
__global__ void __launch_bounds__(32 * kGroupsPerBlock)
    QuantizeKernel(const __grid_constant__ QuantizeParams p) {
  const int32_t row = static_cast<int32_t>(blockIdx.x);
  const int32_t group = static_cast<int32_t>(blockIdx.y * kGroupsPerBlock + threadIdx.x / 32);
  const int32_t lane = static_cast<int32_t>(threadIdx.x % 32);
  if (p.row_count != nullptr && row >= *p.row_count) return;
  if (group * kQuantGroup >= p.k) return;
  const int32_t x_row = p.x_rows != nullptr ? p.x_rows[row] : row;
  const bf16* x = p.x + x_row * p.x_stride;
  const int32_t first = group * kQuantGroup + lane * 4;

  float values[4];
  float amax = kSmallestAmax;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    values[i] = first + i < p.k ? ToFloat(x[first + i]) : 0.0f;
    amax = fmaxf(amax, fabsf(values[i]));  // a NaN loses here and stays in its own code
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, distance));
  }
  const float scale = __fdiv_rn(amax, kLargestCode);
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const uint32_t code = __nv_cvt_float_to_fp8(__fdiv_rn(values[i], scale), __NV_SATFINITE, __NV_E4M3);
    codes |= code << (8 * i);
  }
  if (first < p.pitch) *reinterpret_cast<uint32_t*>(p.codes + row * p.pitch + first) = codes;
  if (lane == 0) p.scales[group * p.row_capacity + row] = scale;
}

}  // namespace

QuantizedShape::QuantizedShape(int64_t rows, int32_t k, int64_t row_unit)
    : pitch(RoundUp(k, 16)),
      row_capacity(RoundUp(rows, row_unit)),
      code_bytes(RoundUp(row_capacity * pitch, 1024)),
      bytes(code_bytes + row_capacity * ((k + kQuantGroup - 1) / kQuantGroup) * int64_t{sizeof(float)}) {}

QuantizedRows QuantizedShape::Place(void* memory) const {
  auto* codes = static_cast<uint8_t*>(memory);
  return {codes, reinterpret_cast<float*>(codes + code_bytes), pitch, row_capacity};
}

void QuantizeRows(Stream& stream, const QuantizedRows& out, Matrix<const bf16> x, const int32_t* x_rows,
                  const int32_t* row_count, int32_t rows) {
  const uint32_t groups = static_cast<uint32_t>((x.cols + kQuantGroup - 1) / kQuantGroup);
  const LaunchShape shape = {.grid = dim3(rows, (groups + kGroupsPerBlock - 1) / kGroupsPerBlock),
                             .block = dim3(32 * kGroupsPerBlock)};
  Launch(stream, &QuantizeKernel, shape,
         QuantizeParams{.codes = out.codes,
                        .scales = out.scales,
                        .x = x.data,
                        .x_rows = x_rows,
                        .row_count = row_count,
                        .pitch = out.pitch,
                        .row_capacity = out.row_capacity,
                        .x_stride = x.stride,
                        .k = x.cols});
}

}  // namespace foredraft::cuda
