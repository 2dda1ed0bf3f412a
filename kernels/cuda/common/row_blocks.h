#pragma once

// How kernels over logits [rows, columns] spread their rows over blocks. Plain C++, so that cost models can
// call it, too.
//
// A row of R1's vocabulary has 517 KB, far too much for one block to be fast: a multiprocessor reads about
// 100 GB/s. So a row is cut into chunks of kChunkColumns, counted from column 0, and each of the row's blocks
// takes the same number of adjacent chunks. Sums of floating-point numbers are kept per chunk, so no result
// depends on how many blocks share a row.

#include <algorithm>
#include <cstdint>

namespace foredraft::cuda {

inline constexpr int32_t kChunkColumns = 4096;
inline constexpr int kChunkThreads = 256;  // of a block; each thread has 16 columns of a chunk

constexpr int32_t ChunksOf(int32_t columns) { return (columns + kChunkColumns - 1) / kChunkColumns; }

// How many chunks each block takes: as few as possible while the blocks of all rows are at most
// `resident_blocks`, which the device runs at once; with more rows than that, all of a row.
constexpr int32_t ChunksPerBlock(int32_t rows, int32_t columns, int32_t resident_blocks) {
  const int32_t chunks = ChunksOf(columns);
  const int32_t blocks = std::clamp(resident_blocks / std::max(rows, 1), 1, std::max(chunks, 1));
  return (chunks + blocks - 1) / blocks;
}

// How many blocks each row has.
constexpr int32_t BlocksPerRow(int32_t rows, int32_t columns, int32_t resident_blocks) {
  const int32_t per_block = std::max(ChunksPerBlock(rows, columns, resident_blocks), 1);
  return (ChunksOf(columns) + per_block - 1) / per_block;
}

// How many blocks of these kernels a multiprocessor runs at once.
inline constexpr int32_t kReadBlocksPerMultiprocessor = 8;    // argmax, relax_drafts: 17 KB of shared memory
inline constexpr int32_t kSelectBlocksPerMultiprocessor = 4;  // sample: up to 45 KB

}  // namespace foredraft::cuda
