#pragma once

// A block's share of a row of logits: some chunks (kernels/cuda/common/row_blocks.h), read through shared
// memory one by one, so that all loads of a chunk are in flight together. Thread t has columns 4 (t + 256 i)
// .. + 3 of a chunk, i < 4, and reads back only what it copied, so that no barrier is needed.

#include <algorithm>
#include <cstdint>
#include <limits>

#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/common/ordered_key.h"
#include "kernels/cuda/common/ptx.h"
#include "kernels/cuda/common/row_blocks.h"
#include "kernels/cuda/device/cuda_stream.h"
#include "kernels/exp.h"
#include "kernels/logit_adjustments.h"
#include "kernels/ops.h"

namespace foredraft::cuda {

inline constexpr uint32_t kAllLanes = 0xffffffffu;
inline constexpr int kChunkWarps = kChunkThreads / 32;
inline constexpr int kChunkPieces = kChunkColumns / (4 * kChunkThreads);

// ---- the blocks of a row ----

// Block (r, b) has chunks [b * chunks_per_block, (b + 1) * chunks_per_block) of row r.
struct RowSplit {
  int32_t columns;
  int32_t chunks;  // of a row
  int32_t blocks;  // of a row
  int32_t chunks_per_block;

  __device__ int32_t first_chunk() const { return static_cast<int32_t>(blockIdx.y) * chunks_per_block; }
  __device__ int32_t end_chunk() const { return min(first_chunk() + chunks_per_block, chunks); }
};

inline RowSplit SplitRow(int32_t rows, int32_t columns, int32_t resident_blocks) {
  return {.columns = columns,
          .chunks = ChunksOf(columns),
          .blocks = BlocksPerRow(rows, columns, resident_blocks),
          .chunks_per_block = ChunksPerBlock(rows, columns, resident_blocks)};
}

inline LaunchShape BlocksOfRows(int32_t rows, const RowSplit& split, size_t shared_bytes) {
  return {.grid = dim3(rows, split.blocks), .block = dim3(kChunkThreads), .shared_bytes = shared_bytes};
}

// ---- a chunk ----

struct ChunkStage {
  float4 pieces[kChunkPieces][kChunkThreads];
};

__device__ __forceinline__ int32_t PieceColumn(int32_t chunk, int piece) {
  return chunk * kChunkColumns + 4 * (piece * kChunkThreads + static_cast<int32_t>(threadIdx.x));
}

inline constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Copies the thread's columns of a chunk of row x into the stage; -infinity past the last column.
__device__ __forceinline__ void LoadChunk(ChunkStage& stage, const float* x, int32_t columns, int32_t chunk) {
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  if (aligned && (chunk + 1) * kChunkColumns <= columns) {
#pragma unroll
    for (int piece = 0; piece < kChunkPieces; ++piece) {
      CpAsync16(&stage.pieces[piece][threadIdx.x], x + PieceColumn(chunk, piece));
    }
  } else {
#pragma unroll 1
    for (int piece = 0; piece < kChunkPieces; ++piece) {
      const int32_t v = PieceColumn(chunk, piece);
      float4& four = stage.pieces[piece][threadIdx.x];
      if (aligned && v + 4 <= columns) {
        CpAsync16(&four, x + v);
      } else {
        four.x = v < columns ? x[v] : kMinusInfinity;
        four.y = v + 1 < columns ? x[v + 1] : kMinusInfinity;
        four.z = v + 2 < columns ? x[v + 2] : kMinusInfinity;
        four.w = v + 3 < columns ? x[v + 3] : kMinusInfinity;
      }
    }
  }
  CpAsyncCommit();
  CpAsyncWait<0>();
}

// Calls visit(v, {x[v] .. x[v + 3]}) for the thread's columns of chunks [begin, end) of row x, ascending; all
// threads of the block are at the same piece of the same chunk. Columns past the last one are -infinity.
template <class Visit>
__device__ __forceinline__ void ForEachFour(ChunkStage& stage, const float* x, int32_t columns, int32_t begin,
                                            int32_t end, const Visit& visit) {
#pragma unroll 1
  for (int32_t chunk = begin; chunk < end; ++chunk) {
    LoadChunk(stage, x, columns, chunk);
#pragma unroll 1
    for (int piece = 0; piece < kChunkPieces; ++piece) {
      const float4 four = stage.pieces[piece][threadIdx.x];
      const float values[4] = {four.x, four.y, four.z, four.w};
      visit(PieceColumn(chunk, piece), values);
    }
  }
}

// Calls visit(v, x[v]) for the thread's columns of the loaded chunk, ascending.
template <class Visit>
__device__ __forceinline__ void ForEachLoaded(const ChunkStage& stage, int32_t columns, int32_t chunk,
                                              const Visit& visit) {
#pragma unroll 1
  for (int piece = 0; piece < kChunkPieces; ++piece) {
    const int32_t v = PieceColumn(chunk, piece);
    const float4 four = stage.pieces[piece][threadIdx.x];
    if (v < columns) visit(v, four.x);
    if (v + 1 < columns) visit(v + 1, four.y);
    if (v + 2 < columns) visit(v + 2, four.z);
    if (v + 3 < columns) visit(v + 3, four.w);
  }
}

// ---- keys (kernels/cuda/common/ordered_key.h) ----

using IndexedKeyBits = unsigned long long;  // the type of CUDA's shuffles and atomics

__device__ __forceinline__ IndexedKeyBits KeyOf(int32_t v, float x) { return IndexedKey(OrderedKey(x), v); }
// The key of a raw logit; the largest such key of a row says whether the row is usable.
__device__ __forceinline__ IndexedKeyBits CheckedKeyOf(int32_t v, float x) {
  return IndexedKey(OrderedKeyOrUnusable(x), v);
}
__device__ __forceinline__ bool IsUsable(IndexedKeyBits largest) {
  return IsUsable(static_cast<uint32_t>(largest >> 32));
}
// kNoToken where the row is not usable.
__device__ __forceinline__ int32_t TokenOf(IndexedKeyBits largest) {
  return IsUsable(largest) ? IndexOf(largest) : kNoToken;
}
__device__ __forceinline__ float LogitOf(IndexedKeyBits key) {
  return FromOrderedKey(static_cast<uint32_t>(key >> 32));
}

// Called by all lanes of a warp; returns the result to all of them.
template <class T, class Join>
__device__ __forceinline__ T WarpReduce(T value, Join join) {
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    value = join(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// The reduction of values[0, count), which earlier kernels wrote, by a warp.
template <class T, class Join>
__device__ __forceinline__ T ReduceByWarp(const T* values, int32_t count, T neutral, Join join) {
  T joined = neutral;
  for (int32_t i = static_cast<int32_t>(threadIdx.x % 32); i < count; i += 32)
    joined = join(joined, values[i]);
  return WarpReduce(joined, join);
}

__device__ __forceinline__ IndexedKeyBits LargestKey(const IndexedKeyBits* keys, int32_t count) {
  return ReduceByWarp(keys, count, IndexedKeyBits{0}, Largest());
}

// ---- softmax sums ----
//
// A chunk's sum is taken relative to the chunk's own largest logit, so that one reading of the row suffices.
// The sums of the chunks are added in a fixed order.

// What the exponents of a chunk are relative to: its largest logit, or 0 where it has no finite one.
__device__ __forceinline__ float ReferenceOf(IndexedKeyBits largest_of_chunk) {
  const float largest = LogitOf(largest_of_chunk);
  return largest > FromOrderedKey(kMinusInfinityKey) ? largest : 0.0f;
}

// The sum over a row of exp(x - largest), by a warp. largest_of_chunk(c) is the key of chunk c's largest
// logit, sums[c] its sum relative to ReferenceOf that key.
template <class LargestOfChunk>
__device__ double SumOfChunks(const double* sums, int32_t chunks, float largest,
                              const LargestOfChunk& largest_of_chunk) {
  double sum = 0.0;
  for (int32_t c = static_cast<int32_t>(threadIdx.x % 32); c < chunks; c += 32) {
    const double reference = static_cast<double>(ReferenceOf(largest_of_chunk(c)));
    if (sums[c] != 0.0) sum += sums[c] * exp(reference - static_cast<double>(largest));
  }
  return WarpReduce(sum, Sum());
}

}  // namespace foredraft::cuda
