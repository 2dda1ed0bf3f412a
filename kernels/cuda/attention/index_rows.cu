// rope_index_query, index_key_write: queries and keys of the indexer, a warp per row of d values. No result
// depends on how the memory is aligned: every access is of one element, and adjacent lanes have adjacent
// ones.

#include "base/check.h"
#include "kernels/cuda/attention/rope.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/dense/rms_norm.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/cuda/device/kernels.h"
#include "kernels/leading_rotation.h"

namespace foredraft::cuda {
namespace {

constexpr int kRowWarps = 8;  // heads or rows of a block
constexpr int32_t kLanes = 32;
constexpr int32_t kMaxKeyWidth = 128;               // as of select_entries
constexpr int kKeyColumns = kMaxKeyWidth / kLanes;  // of a lane: l, l + 32, ..

// Element i of a row after the rotation. x: before it.
__device__ __forceinline__ bf16 RotatedLeading(const LeadingRotation& rotation, const float* x,
                                               const float* cos_sin, int32_t i) {
  if (i >= rotation.rope_dim) return ToBf16(x[i]);
  const LeadingRotation::Pair pair = rotation.PairOf(i);
  const float2 rotated =
      Rotated(x[pair.low], x[pair.high], cos_sin[2 * pair.angle], cos_sin[2 * pair.angle + 1]);
  return ToBf16(i == pair.low ? rotated.x : rotated.y);
}

// Bytes of a row of V3.2, 64 heads of 128: 32,768 read (the partner of a pair comes from the L1 cache),
// 16,384 written.
__global__ void __launch_bounds__(kLanes* kRowWarps)
    RopeIndexQueryKernel(const __grid_constant__ RopeIndexQueryParams p) {
  GridDependencySync();
  const int32_t r = static_cast<int32_t>(blockIdx.x);
  const int32_t head =
      static_cast<int32_t>(blockIdx.y) * kRowWarps + static_cast<int32_t>(threadIdx.x) / kLanes;
  if (head >= p.head_count || p.index.slots[r] < 0) return;
  const LeadingRotation rotation = {p.rope_dim, p.interleaved != 0};
  const float* const cos_sin = p.cos_sin + static_cast<int64_t>(p.index.positions[r]) * p.rope_dim;
  const int64_t at = static_cast<int64_t>(head) * p.head_dim;
#pragma unroll 4
  for (int32_t i = static_cast<int32_t>(threadIdx.x) % kLanes; i < p.head_dim; i += kLanes) {
    p.out.row(r)[at + i] = RotatedLeading(rotation, p.q.row(r) + at, cos_sin, i);
  }
}

struct IndexKeyShared {
  float normed[kRowWarps][kMaxKeyWidth];
};

__device__ __forceinline__ float WarpSum(float x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, distance));
  }
  return x;
}

// Bytes of a row of V3.2: 512 read, 256 written.
__global__ void __launch_bounds__(kLanes* kRowWarps)
    IndexKeyWriteKernel(const __grid_constant__ IndexKeyWriteParams p) {
  GridDependencySync();
  const int32_t warp = static_cast<int32_t>(threadIdx.x) / kLanes;
  const int32_t lane = static_cast<int32_t>(threadIdx.x) % kLanes;
  const int32_t r = static_cast<int32_t>(blockIdx.x) * kRowWarps + warp;
  if (r >= p.index.rows || p.index.slots[r] < 0) return;  // the whole warp
  const int32_t position = p.index.positions[r];
  bf16* const key = p.keys.row(p.index.slots[r], position);
  if (key == nullptr) return;
  const int32_t width = p.k.cols;
  float x[kKeyColumns];
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeyColumns; ++i) {
    const int32_t column = lane + i * kLanes;
    x[i] = column < width ? p.k.row(r)[column] : 0.0f;
    sum = __fadd_rn(sum, x[i]);
  }
  const float mean = __fdiv_rn(WarpSum(sum), static_cast<float>(width));
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kKeyColumns; ++i) {
    x[i] = lane + i * kLanes < width ? __fsub_rn(x[i], mean) : 0.0f;
    squares = __fadd_rn(squares, __fmul_rn(x[i], x[i]));
  }
  const float factor = RmsFactorOfSum(WarpSum(squares), width, p.eps);
  float* const normed = SharedStorage<IndexKeyShared>().normed[warp];
#pragma unroll
  for (int i = 0; i < kKeyColumns; ++i) {
    const int32_t column = lane + i * kLanes;
    if (column >= width) continue;
    normed[column] =
        __fadd_rn(__fmul_rn(p.norm_weight[column], __fmul_rn(x[i], factor)), p.norm_bias[column]);
  }
  __syncwarp();
  const LeadingRotation rotation = {p.rope_dim, p.interleaved != 0};
  const float* const cos_sin = p.cos_sin + static_cast<int64_t>(position) * p.rope_dim;
  for (int32_t i = lane; i < width; i += kLanes) key[i] = RotatedLeading(rotation, normed, cos_sin, i);
}

uint32_t BlocksOf(int32_t rows) { return static_cast<uint32_t>((rows + kRowWarps - 1) / kRowWarps); }

}  // namespace

void RopeIndexQuery(Stream& stream, const RopeIndexQueryParams& p) {
  CHECK_LE(p.rope_dim, p.head_dim);
  if (p.index.rows == 0) return;
  Launch(stream, RopeIndexQueryKernel,
         {.grid = dim3(static_cast<uint32_t>(p.index.rows), BlocksOf(p.head_count)),
          .block = dim3(kLanes * kRowWarps)},
         p);
}

void IndexKeyWrite(Stream& stream, const IndexKeyWriteParams& p) {
  CHECK_LE(p.k.cols, kMaxKeyWidth);
  CHECK_LE(p.rope_dim, p.k.cols);
  CHECK_EQ(p.keys.width, p.k.cols);
  if (p.index.rows == 0) return;
  Launch(stream, IndexKeyWriteKernel,
         {.grid = dim3(BlocksOf(p.index.rows)),
          .block = dim3(kLanes * kRowWarps),
          .shared_bytes = sizeof(IndexKeyShared)},
         p);
}

}  // namespace foredraft::cuda
