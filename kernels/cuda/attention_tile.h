#ifndef FOREDRAFT_KERNELS_CUDA_ATTENTION_TILE_H_
#define FOREDRAFT_KERNELS_CUDA_ATTENTION_TILE_H_

// What mla_decode and mla_prefill share: tiles of BF16 rows in shared memory, the tensor cores' fragments out
// of them, and the constants of the softmax over tiles of keys.
//
// Scores are kept in units of log2: p = 2^(s * scale * log2 e - max). A masked key's score is kMaskedScore
// and a row's running maximum starts at kFirstMax, far above it: a masked key weighs exactly 0, and a tile of
// nothing but masked keys multiplies what was there by exactly 1 and adds 0.

#include "kernels/cuda/ptx.h"
#include "kernels/dtype.h"

namespace foredraft::cuda {

inline constexpr int kKeyTile = 64;  // keys a block works on at a time
inline constexpr int kWarpLanes = 32;
inline constexpr unsigned kAllLanes = 0xffffffffu;
inline constexpr float kMaskedScore = -1e33f;
inline constexpr float kFirstMax = -1e30f;
inline constexpr float kLog2E = 1.44269504088896340736f;

// kRows rows of kStride elements. The 16-byte chunks of each 128 bytes are permuted by the row's number, so
// that the eight rows of a fragment's column lie in different banks.
template <int kRows, int kStride>
struct alignas(128) RowTile {
  static_assert(kStride % 64 == 0);
  bf16 elements[kRows * kStride];

  __device__ __forceinline__ bf16* At(int row, int column) {
    return elements + row * kStride + (column & ~63) + ((((column >> 3) ^ row) & 7) << 3) + (column & 7);
  }
};

// A row in two parts, as queries and keys have them: first | second. A null first: the row is masked, all
// zeros.
struct RowParts {
  const bf16* first;
  const bf16* second;
  int first_len;
  int len;  // of both
};

// Eight elements of a row from `column` on, into one chunk of a tile; zeros past the row's end. `aligned`:
// parts begin at 16-byte addresses and have multiples of 8 elements.
__device__ __forceinline__ void FillChunk(bf16* chunk, const RowParts& row, int column, bool aligned,
                                          const bf16* any_address) {
  const bool present = row.first != nullptr && column < row.len;
  if (aligned) {
    const bf16* part = column < row.first_len ? row.first + column : row.second + (column - row.first_len);
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

// A of MmaBf16: rows row0..row0+15, columns column0..column0+15.
template <class Tile>
__device__ __forceinline__ void LoadA(uint32_t (&a)[4], Tile& tile, int row0, int column0, int lane) {
  LdMatrix4(a, tile.At(row0 + (lane & 15), column0 + (lane >> 4) * 8));
}

// B of two MmaBf16 side by side, the tile's rows (keys) being B's columns: keys key0..key0+15, of which
// b[0..1] are the first eight, and elements column0..column0+15.
template <class Tile>
__device__ __forceinline__ void LoadKeys(uint32_t (&b)[4], Tile& tile, int key0, int column0, int lane) {
  LdMatrix4(b, tile.At(key0 + (lane >> 4) * 8 + (lane & 7), column0 + ((lane >> 3) & 1) * 8));
}

// B of two MmaBf16 side by side, the tile's rows being B's rows: elements column0..column0+15, of which
// b[0..1] are the first eight, of keys key0..key0+15.
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

// Over the four lanes that share a fragment's rows.
__device__ __forceinline__ float QuadMax(float x) {
  x = fmaxf(x, __shfl_xor_sync(kAllLanes, x, 1));
  return fmaxf(x, __shfl_xor_sync(kAllLanes, x, 2));
}
__device__ __forceinline__ float QuadSum(float x) {
  x += __shfl_xor_sync(kAllLanes, x, 1);
  return x + __shfl_xor_sync(kAllLanes, x, 2);
}

// Two neighbours of a row, rounded; `low` has the lower address.
__device__ __forceinline__ uint32_t PackBf16(float low, float high) {
  const uint32_t low_bits = __bfloat16_as_ushort(__float2bfloat16_rn(low));
  return low_bits | static_cast<uint32_t>(__bfloat16_as_ushort(__float2bfloat16_rn(high))) << 16;
}

// The first `count` (1 or 2) of two neighbours; `paired`: `out` is 4-byte aligned and count is 2.
__device__ __forceinline__ void StorePair(bf16* out, float x0, float x1, int count, bool paired) {
  const uint32_t bits = PackBf16(x0, x1);
  if (paired) {
    *reinterpret_cast<uint32_t*>(out) = bits;
    return;
  }
  out[0] = bf16{static_cast<uint16_t>(bits)};
  if (count > 1) out[1] = bf16{static_cast<uint16_t>(bits >> 16)};
}

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_ATTENTION_TILE_H_
