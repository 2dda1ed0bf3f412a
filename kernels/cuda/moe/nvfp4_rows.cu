// round_nvfp4, widen_nvfp4: a thread has a group of 16 columns of a row, two 16-byte loads in flight.

#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/rules/nvfp4_rows.h"

namespace foredraft::cuda {
namespace {

constexpr int kThreads = 128;

struct alignas(16) Group {
  bf16 x[kNvfp4Group];
};

template <bool aligned>
__device__ __forceinline__ Group LoadGroup(const bf16* from) {
  Group group;
  if constexpr (aligned) {
    auto* const halves = reinterpret_cast<uint4*>(group.x);
    halves[0] = reinterpret_cast<const uint4*>(from)[0];
    halves[1] = reinterpret_cast<const uint4*>(from)[1];
  } else {
#pragma unroll
    for (int i = 0; i < kNvfp4Group; ++i) group.x[i] = from[i];
  }
  return group;
}

template <bool aligned>
__device__ __forceinline__ void StoreGroup(bf16* to, const Group& group) {
  if constexpr (aligned) {
    const auto* const halves = reinterpret_cast<const uint4*>(group.x);
    reinterpret_cast<uint4*>(to)[0] = halves[0];
    reinterpret_cast<uint4*>(to)[1] = halves[1];
  } else {
#pragma unroll
    for (int i = 0; i < kNvfp4Group; ++i) to[i] = group.x[i];
  }
}

// The codes of eight columns, the first in the lowest nibble.
__device__ __forceinline__ uint32_t CodesOf(const bf16* x, float product) {
  uint32_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) codes |= uint32_t{Nvfp4Code(x[i], product)} << 4 * i;
  return codes;
}

__device__ __forceinline__ Group ValuesOf(const uint2& codes, uint8_t scale) {
  Group group;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    group.x[i] = Nvfp4Value(static_cast<uint8_t>(codes.x >> 4 * i & 15), scale);
    group.x[8 + i] = Nvfp4Value(static_cast<uint8_t>(codes.y >> 4 * i & 15), scale);
  }
  return group;
}

// The scale of a grouped row's expert: the first expert whose rows end after the row.
__device__ __forceinline__ float ScaleOf(const RoundNvfp4Params& p, int32_t row) {
  if (p.expert_offsets == nullptr) return p.input_scales[0];
  int32_t low = 0, high = p.expert_count - 1;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (p.expert_offsets[middle + 1] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return p.input_scales[low];
}

__device__ __forceinline__ int32_t FirstColumnOfGroup() {
  return static_cast<int32_t>(blockIdx.y * blockDim.x + threadIdx.x) * kNvfp4Group;
}

// Block (r, b) has rows r, r + gridDim.x ...
template <bool aligned>
__global__ void __launch_bounds__(kThreads) RoundNvfp4Kernel(const __grid_constant__ RoundNvfp4Params p) {
  GridDependencySync();
  const int32_t first = FirstColumnOfGroup();
  if (first >= p.x.cols) return;
  const int32_t all = p.out ? p.out.rows : p.out_codes.rows;
  const int32_t rows = p.expert_offsets == nullptr ? all : min(all, p.expert_offsets[p.expert_count]);
  for (int32_t r = static_cast<int32_t>(blockIdx.x); r < rows; r += static_cast<int32_t>(gridDim.x)) {
    const int32_t x_row = p.x_rows != nullptr ? p.x_rows[r] : r;
    const Group group = LoadGroup<aligned>(p.x.row(x_row) + first);
    uint32_t magnitude = 0;
#pragma unroll
    for (int i = 0; i < kNvfp4Group; ++i) magnitude = max(magnitude, group.x[i].bits & 0x7fffu);
    const float input_scale = ScaleOf(p, r);
    const uint8_t scale = Nvfp4Scale(magnitude, input_scale);
    const float product = Nvfp4Product(scale, input_scale);
    const uint2 codes = make_uint2(CodesOf(group.x, product), CodesOf(group.x + 8, product));
    if (p.out) {
      StoreGroup<aligned>(p.out.row(r) + first, ValuesOf(codes, scale));
    } else {
      *reinterpret_cast<uint2*>(p.out_codes.codes(r) + first / 2) = codes;
      p.out_codes.scales(r)[first / kNvfp4Group] = scale;
    }
  }
}

template <bool aligned>
__global__ void __launch_bounds__(kThreads) WidenNvfp4Kernel(const __grid_constant__ WidenNvfp4Params p) {
  GridDependencySync();
  const int32_t first = FirstColumnOfGroup();
  if (first >= p.out.cols) return;
  const int64_t r = blockIdx.x;
  const uint2 codes = *reinterpret_cast<const uint2*>(p.x.codes(r) + first / 2);
  const uint8_t scale = p.x.scales(r)[first / kNvfp4Group];
  StoreGroup<aligned>(p.out.row(r) + first, ValuesOf(codes, scale));
}

template <class T>
bool IsGroupAligned(const Matrix<T>& x) {
  return !x || (reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && x.stride % 8 == 0);
}

uint32_t BlocksOfRow(int32_t cols) {
  constexpr uint32_t kColumns = kThreads * kNvfp4Group;
  return (static_cast<uint32_t>(cols) + kColumns - 1) / kColumns;
}

}  // namespace

void RoundNvfp4(Stream& stream, const RoundNvfp4Params& p) {
  const int32_t rows = p.out ? p.out.rows : p.out_codes.rows;
  if (rows == 0) return;
  const int32_t* const count = p.expert_offsets == nullptr ? nullptr : p.expert_offsets + p.expert_count;
  const uint32_t blocks = BlocksOfRow(p.x.cols);
  const LaunchShape shape = {.grid = dim3(BlocksForRows(stream, rows, blocks, count), blocks),
                             .block = dim3(kThreads)};
  const bool aligned = IsGroupAligned(p.x) && IsGroupAligned(p.out);
  Launch(stream, aligned ? RoundNvfp4Kernel<true> : RoundNvfp4Kernel<false>, shape, p);
}

void WidenNvfp4(Stream& stream, const WidenNvfp4Params& p) {
  if (p.out.rows == 0) return;
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.out.rows), BlocksOfRow(p.out.cols)),
                             .block = dim3(kThreads)};
  Launch(stream, IsGroupAligned(p.out) ? WidenNvfp4Kernel<true> : WidenNvfp4Kernel<false>, shape, p);
}

}  // namespace foredraft::cuda
