#pragma once

// Logprobs of raw logits: the chosen token's and the most probable ones'.
//
// While sample reads a row, it keeps the largest logit of each group (the columns of a chunk that one warp
// reads) and each chunk's softmax sum. With n wanted, the n most probable tokens are in the n groups with the
// largest logits, so one block reads only these groups: at most 20 of R1's 256.

#include <cstdint>

#include "kernels/cuda/common/block_reduce.h"
#include "kernels/cuda/sample/logit_row.h"
#include "kernels/exp.h"
#include "kernels/slot_arrays.h"

namespace foredraft::cuda {

inline constexpr int32_t kGroupColumns = kChunkColumns / kChunkWarps;

// What the chunks of all rows leave for the logprobs, in device memory.
struct LogprobArrays {
  IndexedKeyBits* groups = nullptr;  // [R, chunks, kChunkWarps]: the key of each group's largest logit
  double* sums = nullptr;            // [R, chunks]: of exp(logit - ReferenceOf(the chunk's largest))
};

struct LogprobChunkShared {
  IndexedKeyBits keys[kMaxWarps];
  double sums[kMaxWarps];
};

// Sums up the loaded chunk of row r. Called by all threads of a block.
__device__ inline void SumUpRawChunk(const LogprobArrays& arrays, const RowSplit& split, int32_t r,
                                     int32_t chunk, const ChunkStage& stage, LogprobChunkShared& shared) {
  IndexedKeyBits largest = 0;
  ForEachLoaded(stage, split.columns, chunk,
                [&](int32_t v, float x) { largest = Largest()(largest, KeyOf(v, x)); });
  largest = WarpReduce(largest, Largest());
  const int64_t index = int64_t{r} * split.chunks + chunk;
  if (threadIdx.x % 32 == 0) arrays.groups[index * kChunkWarps + threadIdx.x / 32] = largest;
  const float reference = ReferenceOf(BlockReduce(largest, Largest(), shared.keys));
  double sum = 0.0;
  ForEachLoaded(stage, split.columns, chunk,
                [&](int32_t, float x) { sum += static_cast<double>(Exp(x - reference)); });
  sum = BlockReduce(sum, Sum(), shared.sums);
  if (threadIdx.x == 0) arrays.sums[index] = sum;
}

struct LogprobShared {
  IndexedKeyBits warps[kMaxWarps];
  int32_t group_count;                                // length of the next array
  int32_t groups[kMaxLogprobs];                       // in any order
  int32_t key_count;                                  // length of the next array
  IndexedKeyBits keys[kMaxLogprobs * kGroupColumns];  // in any order
};

// Takes the `count` groups with the largest logits, and lists their keys that are not below the smallest of
// these largest logits: the row's `count` largest keys are among them.
__device__ inline void ListLargestKeys(const float* logits, const RowSplit& split,
                                       const IndexedKeyBits* groups, int32_t count, LogprobShared& shared) {
  const int32_t group_count = split.chunks * kChunkWarps;
  const int32_t own = static_cast<int32_t>(threadIdx.x);
  if (own == 0) {
    shared.group_count = 0;
    shared.key_count = 0;
  }
  __syncthreads();
  IndexedKeyBits least = ~IndexedKeyBits{0};
  for (int32_t g = own; g < group_count; g += kChunkThreads) {
    const IndexedKeyBits key = groups[g];
    int32_t larger = 0;
    for (int32_t other = 0; other < group_count; ++other) larger += groups[other] > key ? 1 : 0;
    if (key == 0 || larger >= count) continue;  // 0: no columns
    shared.groups[atomicAdd(&shared.group_count, 1)] = g;
    least = min(least, key);
  }
  least = ~BlockReduce(~least, Largest(), shared.warps);
  if (shared.group_count < count) least = 0;  // fewer groups than tokens: list all
  const int32_t lane = own % 32;
  for (int32_t i = own / 32; i < shared.group_count; i += kChunkWarps) {
    const int32_t g = shared.groups[i];
    for (int piece = 0; piece < kChunkPieces; ++piece) {
      const int32_t first =
          g / kChunkWarps * kChunkColumns + 4 * (piece * kChunkThreads + g % kChunkWarps * 32);
      for (int32_t v = first + lane; v < min(first + 128, split.columns); v += 32) {
        const IndexedKeyBits key = KeyOf(v, logits[v]);
        if (key >= least) shared.keys[atomicAdd(&shared.key_count, 1)] = key;
      }
    }
  }
  __syncthreads();
}

// Called by a block, after all chunks of row r are summed up. `draft`: the one that the row verifies, or the
// token.
__device__ inline void WriteLogprobs(const LogprobArrays& arrays, const RowSplit& split, int32_t r,
                                     const float* logits, int32_t token, int32_t draft, int32_t top_count,
                                     LogprobOutput* out, LogprobShared& shared) {
  const IndexedKeyBits* const groups = arrays.groups + int64_t{r} * split.chunks * kChunkWarps;
  const float largest = LogitOf(LargestKey(groups, split.chunks * kChunkWarps));
  const double sum =
      SumOfChunks(arrays.sums + int64_t{r} * split.chunks, split.chunks, largest, [&](int32_t c) {
        IndexedKeyBits key = 0;
        for (int warp = 0; warp < kChunkWarps; ++warp) key = Largest()(key, groups[c * kChunkWarps + warp]);
        return key;
      });
  const double log_sum = static_cast<double>(largest) + log(sum);
  const int32_t count = min(min(top_count, split.columns), kMaxLogprobs);
  if (threadIdx.x == 0) {
    out->token_id = token;
    out->logprob = static_cast<float>(static_cast<double>(logits[token]) - log_sum);
    out->draft_logprob = static_cast<float>(static_cast<double>(logits[draft]) - log_sum);
    out->top_count = count;
  }
  if (count == 0) return;
  ListLargestKeys(logits, split, groups, count, shared);
  IndexedKeyBits last = ~IndexedKeyBits{0};
  for (int32_t i = 0; i < count; ++i) {
    IndexedKeyBits next = 0;
    for (int32_t k = static_cast<int32_t>(threadIdx.x); k < shared.key_count; k += kChunkThreads) {
      const IndexedKeyBits key = shared.keys[k];
      if (key < last) next = Largest()(next, key);
    }
    last = BlockReduce(next, Largest(), shared.warps);
    if (threadIdx.x == 0) {
      out->top_ids[i] = IndexOf(last);
      out->top_logprobs[i] = static_cast<float>(static_cast<double>(logits[IndexOf(last)]) - log_sum);
    }
  }
}

}  // namespace foredraft::cuda
