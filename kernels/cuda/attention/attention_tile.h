#pragma once

// Shared by the attention kernels: tiles of BF16 rows in shared memory, the mma fragments loaded from
// them, and the constants of the online softmax over tiles of keys.
//
// Scores are in units of log2: p = 2^(s * scale * log2 e - max). A masked key's score is kMaskedScore, and a
// row's running maximum starts at kFirstMax, far above it. So a masked key has a weight of exactly 0, and a
// tile of masked keys only multiplies the running sums by exactly 1 and adds 0.

#include "kernels/cuda/attention/mla_decode_schedule.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {

inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kMaskedScore = -1e33f;
inline constexpr float kFirstMax = -1e30f;
inline constexpr float kLog2E = 1.44269504088896340736f;

// kRows rows of kStride elements in shared memory, swizzled: the 16-byte chunks of each 128 bytes are
// permuted by the row index, so that the eight rows of an ldmatrix hit different banks.
template <int kRows, int kStride>
struct alignas(128) RowTile {
  static_assert(kStride % 64 == 0);
  bf16 elements[kRows * kStride];

  __device__ __forceinline__ bf16* At(int row, int column) {
    return elements + row * kStride + (column & ~63) + ((((column >> 3) ^ row) & 7) << 3) + (column & 7);
  }
};

// Tile sizes of a block that computes heads of a row (attention_heads.h).
//
// clang-format off
//   kHeadTiles    16 heads each
//   kWarps        a multiple of kHeadTiles
//   kStride       elements of a row in shared memory, at least the width of a key
//   kValue        the widest value
//   kStages       tiles of keys in shared memory: with 2, the next one loads while this one is used
//   kBlocksPerSm  that a multiprocessor holds
//   kWeightTiles  1, or with FP8 products the groups of columns of a value: each has weights of its own
// clang-format on
template <int kHeadTilesOf, int kWarpsOf, int kStrideOf, int kValueOf, int kStagesOf, int kBlocksPerSmOf,
          int kWeightTilesOf = 1>
struct HeadsShape {
  static constexpr int kHeadTiles = kHeadTilesOf;
  static constexpr int kHeads = kHeadTiles * 16;
  static constexpr int kWarps = kWarpsOf;
  static constexpr int kThreads = kWarps * kWarpLanes;
  static constexpr int kStride = kStrideOf;
  static constexpr int kValue = kValueOf;
  static constexpr int kStages = kStagesOf;
  static constexpr int kBlocksPerSm = kBlocksPerSmOf;
  static constexpr int kWeightTiles = kWeightTilesOf;
  static constexpr int kKeysPerWarp = kKeyTile / (kWarps / kHeadTiles);  // whose scores a warp computes
  static constexpr int kColumnBlocks = kValue / 16 / kWarps;  // 16 columns each, kWarps blocks apart
  static_assert(kKeysPerWarp % 16 == 0 && kColumnBlocks * 16 * kWarps == kValue);
};

// A row in two parts, like queries and keys: first | second. A null `first` is a masked row: all zeros.
struct RowParts {
  const bf16* first;
  const bf16* second;
  int first_len;
  int len;  // of both
};

// Copies elements [column, column + 8) of a row into one chunk of a tile; zeros past the row's end.
// `aligned`: the parts are 16-byte aligned and their lengths are multiples of 8.
__device__ __forceinline__ void FillChunk(bf16* chunk, const RowParts& row, int column, bool aligned,
                                          const void* any_address) {
  const bool present = row.first != nullptr && column < row.len;
  if (aligned) {
    const void* part = column < row.first_len ? row.first + column : row.second + (column - row.first_len);
    CpAsync16(chunk, present ? part : any_address, present);
    return;
  }
  for (int i = 0; i < 8; ++i) {
    const int at = column + i;
    if (!present || at >= row.len) {
      chunk[i] = bf16{0};
    } else {
      chunk[i] = at < row.first_len ? row.first[at] : row.second[at - row.first_len];
    }
  }
}

// A row of a RowTile as a lane of ldmatrix has it: eight of every 16 columns. The swizzle permutes the chunks
// of 64 columns, so four addresses are enough for all columns, and for rows a multiple of eight away: the
// distances are constants, which ldmatrix has as immediates.
template <class Tile>
class FragmentRow {
 public:
  // first_column: 0 or 8.
  __device__ __forceinline__ FragmentRow(Tile& tile, int row, int first_column)
      : chunks_{tile.At(row, first_column), tile.At(row, first_column + 16), tile.At(row, first_column + 32),
                tile.At(row, first_column + 48)} {}

  // The address for columns [line + 16 * step, line + 16 * (step + 1)); line is a multiple of 64, step < 4.
  __device__ __forceinline__ const bf16* At(int line, int step) const { return chunks_[step] + line; }

 private:
  const bf16* chunks_[4];
};

// Operand A of MmaBf16: rows [row0, row0 + 16), columns [column0, column0 + 16).
template <class Tile>
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], Tile& tile, int row0, int column0, int lane) {
  LdMatrix4(a, tile.At(row0 + (lane & 15), column0 + (lane >> 4) * 8));
}

// Operand B of two adjacent MmaBf16 for Q K^T, where the tile's rows (keys) are B's columns: keys
// [key0, key0 + 16), the first eight in b[0..1], and elements [column0, column0 + 16).
template <class Tile>
__device__ __forceinline__ void LoadKeys(uint32_t (&b)[4], Tile& tile, int key0, int column0, int lane) {
  LdMatrix4(b, tile.At(key0 + (lane >> 4) * 8 + (lane & 7), column0 + ((lane >> 3) & 1) * 8));
}

// Operand B of two adjacent MmaBf16 for P V, where the tile's rows (keys) are B's rows: elements
// [column0, column0 + 16), the first eight in b[0..1], of keys [key0, key0 + 16).
template <class Tile>
__device__ __forceinline__ void LoadValues(uint32_t (&b)[4], Tile& tile, int key0, int column0, int lane) {
  LdMatrix4Transposed(b, tile.At(key0 + (lane & 15), column0 + (lane >> 4) * 8));
}

// d0 += a b[0..1], d1 += a b[2..3].
__device__ __forceinline__ void MmaPair(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4],
                                        const uint32_t (&b)[4]) {
  const uint32_t left[2] = {b[0], b[1]};
  const uint32_t right[2] = {b[2], b[3]};
  MmaBf16(d0, a, left);
  MmaBf16(d1, a, right);
}

// Reductions over the four lanes that share a fragment's rows.
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Rounds two adjacent elements; `low` has the lower address.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const uint32_t low_bits = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  return low_bits | static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

// Stores the first `count` (1 or 2) of two adjacent elements; `paired`: `out` is 4-byte aligned and count
// is 2.
__device__ __forceinline__ void StorePair(bf16* out, float x0, float x1, int count, bool paired) {
  const uint32_t bits = PackBf16(x0, x1);
  if (paired) {
    *reinterpret_cast<uint32_t*>(out) = bits;
    return;
  }
  out[0] = bf16{static_cast<uint16_t>(bits)};
  if (count > 1) out[1] = bf16{static_cast<uint16_t>(bits >> 16)};
}
// StorePair without rounding; `paired`: `out` is 8-byte aligned and count is 2.
__device__ __forceinline__ void StorePair(float* out, float x0, float x1, int count, bool paired) {
  if (paired) {
    *reinterpret_cast<float2*>(out) = make_float2(x0, x1);
    return;
  }
  out[0] = x0;
  if (count > 1) out[1] = x1;
}

}  // namespace foredraft::cuda
