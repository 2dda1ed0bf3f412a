// rotate_heads, write_keys: one pass over each row. No result depends on whether the memory is aligned for
// vector loads.

#include "base/check.h"
#include "kernels/cuda/attention/kv_row_store.h"
#include "kernels/cuda/attention/rope.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/vec4.h"
#include "kernels/cuda/dense/rms_norm.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"

namespace foredraft::cuda {
namespace {

// ---- rotate_heads ----

constexpr int kHeadWarps = 8;
constexpr int32_t kWarpColumns = 4 * 32;  // that a warp takes at a time

// A warp per head, eight heads per block. Lane l has columns 4 l + 128 i .. + 3, which fixes the order of the
// norm's sum.
//
// Bytes of a row of V4-Flash, 64 heads of 512: 131,072 read (with `norm` the second reading comes from the L1
// cache: a block's heads are 16 KB), 65,536 written.
template <bool aligned>
__global__ void __launch_bounds__(32 * kHeadWarps)
    RotateHeadsKernel(const __grid_constant__ RotateHeadsParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t head = static_cast<int32_t>(blockIdx.y) * kHeadWarps + static_cast<int32_t>(threadIdx.x / 32);
  if (head >= p.head_count || p.index.slots[r] < 0) return;  // the whole warp
  const int32_t width = p.head_dim;
  const float* const x = p.x.row(r) + static_cast<int64_t>(head) * width;
  bf16* const out = p.out.row(r) + static_cast<int64_t>(head) * width;
  const int32_t first = static_cast<int32_t>(threadIdx.x % 32) * 4;
  float factor = 1.0f;
  if (p.norm != 0) {
    float sum = 0.0f;
#pragma unroll 4
    for (int32_t i = first; i < width; i += kWarpColumns) {
      sum = AddSquares(sum, LoadVec4<aligned>(x, i, width));
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      sum = __fadd_rn(sum, __shfl_xor_sync(0xffffffffu, sum, distance));
    }
    factor = RmsFactorOfSum(sum, width, p.eps);
  }
  const TailRotation rotation = {
      .cos_sin = p.cos_sin + static_cast<int64_t>(p.index.positions[r]) * p.rope_dim,
      .width = width,
      .rope_dim = p.rope_dim,
      .sign = p.inverse != 0 ? -1.0f : 1.0f};
#pragma unroll 4
  for (int32_t i = first; i < width; i += kWarpColumns) {
    Vec4 four = LoadVec4<aligned>(x, i, width);
#pragma unroll
    for (float& value : four.x) value = __fmul_rn(value, factor);  // by exactly 1 without a norm
    four = rotation.Apply<aligned>(four, i, [&](int32_t column) { return __fmul_rn(x[column], factor); });
    StoreVec4<aligned>(out, i, width, four);
  }
}

// ---- write_keys ----

struct WriteKeysShared {
  float sums[kMaxWarps];
};

// A block per row, of RmsThreads(width, 4) threads.
//
// Bytes of a row of V4-Flash: 2,048 read, 2 x 1,024 written, in FP8 2 x 608.
template <bool aligned, DType kDType>
__global__ void __launch_bounds__(32 * kMaxWarps) WriteKeysKernel(const __grid_constant__ WriteKeysParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t slot = p.index.slots[r];
  if (slot < 0) return;  // the whole block
  const int32_t position = p.index.positions[r];
  const KvRowLayout layout = KeyLayout<kDType>(p.layout);
  const int32_t width = layout.width();
  const float* const x = p.kv.row(r);
  uint8_t* const key = p.keys.row(r);
  uint8_t* const cached = p.window.row(slot, position);
  const int32_t first = 4 * static_cast<int32_t>(threadIdx.x);
  const int32_t step = 4 * static_cast<int32_t>(blockDim.x);
  float sum = 0.0f;
  for (int32_t i = first; i < width; i += step) sum = AddSquares(sum, LoadVec4<aligned>(x, i, width));
  const float factor = RmsFactor(sum, width, p.eps, SharedStorage<WriteKeysShared>().sums);
  const TailRotation rotation = {.cos_sin = p.cos_sin + static_cast<int64_t>(position) * layout.rope_dim,
                                 .width = width,
                                 .rope_dim = layout.rope_dim,
                                 .sign = 1.0f};
  for (int32_t i = first; HasColumns<kDType>(i, width); i += step) {
    const Vec4 normed =
        Normed(LoadInside<aligned>(x, i, width), LoadInside<aligned>(p.norm_weight, i, width), factor);
    Vec4 rotated = normed;
    if (i < width) {
      rotated = rotation.Apply<aligned>(normed, i, [&](int32_t column) {
        return __fmul_rn(p.norm_weight[column], __fmul_rn(x[column], factor));
      });
    }
    const LatentCodes codes = EncodeKey<kDType>(layout, i, rotated);
    StoreKey<aligned, kDType>(layout, key, i, rotated, codes);
    if (cached != nullptr) StoreKey<aligned, kDType>(layout, cached, i, rotated, codes);
  }
}

}  // namespace

void RotateHeads(Stream& stream, const RotateHeadsParams& p) {
  CHECK_LE(p.rope_dim, p.head_dim);
  const bool aligned =
      IsVec4Aligned(p.out) && IsVec4Aligned(p.x) && IsRotationAligned(p.cos_sin, p.head_dim, p.rope_dim);
  Launch(stream, aligned ? RotateHeadsKernel<true> : RotateHeadsKernel<false>,
         {.grid = dim3(static_cast<uint32_t>(p.index.rows),
                       static_cast<uint32_t>((p.head_count + kHeadWarps - 1) / kHeadWarps)),
          .block = dim3(32 * kHeadWarps)},
         p);
}

void WriteKeys(Stream& stream, const WriteKeysParams& p) {
  const int32_t width = p.layout.width();
  CHECK_EQ(p.kv.cols, width);
  CHECK_EQ(p.window.width, p.layout.bytes());
  const bool aligned = IsKeyAligned(p.layout, p.keys.data, p.keys.stride) && IsVec4Aligned(p.kv) &&
                       IsKeyAligned(p.layout, p.window.data, p.window.width) &&
                       IsVec4Aligned(p.norm_weight, width, width) &&
                       IsRotationAligned(p.cos_sin, width, p.layout.rope_dim);
  const LaunchShape shape = {.grid = dim3(static_cast<uint32_t>(p.index.rows)),
                             .block = dim3(RmsThreads(width, 4)),
                             .shared_bytes = sizeof(WriteKeysShared)};
  WithKvDType(p.layout.dtype, [&](auto dtype) {
    Launch(stream, aligned ? WriteKeysKernel<true, dtype()> : WriteKeysKernel<false, dtype()>, shape, p);
  });
}

}  // namespace foredraft::cuda
