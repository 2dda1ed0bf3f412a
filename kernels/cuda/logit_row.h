#ifndef FOREDRAFT_KERNELS_CUDA_LOGIT_ROW_H_
#define FOREDRAFT_KERNELS_CUDA_LOGIT_ROW_H_

// Iteration of a block over a row of logits, or over a chunk of one. The columns of a thread depend on the
// column count alone (thread t of T has columns 4 (t + i T) .. + 3), so sums over a row do not depend on its
// index.
//
// A row of R1's vocabulary has 517 KB, too much for one block to be fast. So reductions whose order does not
// matter (maximum, draw) run over chunks of kChunkColumns, a block each, and the next kernel combines the
// keys of the chunks.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/block_reduce.h"
#include "kernels/cuda/cuda_stream.h"
#include "kernels/ops.h"
#include "kernels/penalties.h"

namespace foredraft::cuda {

inline constexpr int kMaxRowThreads = 1024;

inline int ThreadsPerRow(int32_t columns) {
  return std::clamp((columns + 127) / 128 * 32, 32, kMaxRowThreads);
}

// Calls visit(v, x[v]) for the thread's columns of [begin, end), ascending. `begin` is a multiple of 4.
template <class Visit>
__device__ __forceinline__ void ForEachLogit(const float* x, int32_t begin, int32_t end, const Visit& visit) {
  const bool aligned = reinterpret_cast<uintptr_t>(x) % 16 == 0;
  for (int32_t v = begin + 4 * static_cast<int32_t>(threadIdx.x); v < end;
       v += 4 * static_cast<int32_t>(blockDim.x)) {
    if (aligned && v + 4 <= end) {
      const float4 four = *reinterpret_cast<const float4*>(x + v);
      visit(v, four.x);
      visit(v + 1, four.y);
      visit(v + 2, four.z);
      visit(v + 3, four.w);
    } else {
      for (int32_t i = v; i < min(v + 4, end); ++i) visit(i, x[i]);
    }
  }
}

template <class Visit>
__device__ __forceinline__ void ForEachLogit(const float* x, int32_t columns, const Visit& visit) {
  ForEachLogit(x, 0, columns, visit);
}

// ---- chunks ----

inline constexpr int32_t kChunkColumns = 4096;
inline constexpr int kChunkThreads = 256;

inline int32_t ChunksOf(int32_t columns) { return (columns + kChunkColumns - 1) / kChunkColumns; }

// Block (r, c): chunk c of row r.
inline LaunchShape BlockPerChunk(int32_t rows, int32_t columns, size_t shared_bytes) {
  return {.grid = dim3(rows, ChunksOf(columns)), .block = dim3(kChunkThreads), .shared_bytes = shared_bytes};
}

template <class Visit>
__device__ __forceinline__ void ForEachLogitOfChunk(const float* x, int32_t columns, const Visit& visit) {
  const int32_t begin = static_cast<int32_t>(blockIdx.y) * kChunkColumns;
  ForEachLogit(x, begin, min(begin + kChunkColumns, columns), visit);
}

// The largest of a row's keys, one per chunk. Called by all lanes of a warp; returns it to all of them.
__device__ __forceinline__ unsigned long long LargestOfChunks(const unsigned long long* keys,
                                                              int32_t chunks) {
  unsigned long long best = 0;
  for (int32_t chunk = static_cast<int32_t>(threadIdx.x % 32); chunk < chunks; chunk += 32) {
    best = Largest()(best, keys[chunk]);
  }
#pragma unroll
  for (int distance = 16; distance > 0; distance /= 2) {
    best = Largest()(best, __shfl_xor_sync(0xffffffffu, best, distance));
  }
  return best;
}

// Applies the slot's penalties to a row's logits.
struct PenalisedLogits {
  const SlotConstants* constants;
  const int32_t* counts;     // [vocab]
  const uint8_t* in_prompt;  // [vocab]
  DraftHistory history;
  bool applies;

  __device__ PenalisedLogits(const SlotArrays& slots, int32_t slot, const DraftHistory& drafts)
      : constants(slots.constants + slot),
        counts(slots.output_counts + static_cast<int64_t>(slot) * slots.vocab_size),
        in_prompt(slots.prompt_seen + static_cast<int64_t>(slot) * slots.vocab_size),
        history(drafts),
        applies(HasPenalties(*constants)) {}

  __device__ float operator()(int32_t v, float logit) const {
    if (!applies) return logit;
    return Penalised(*constants, logit, in_prompt[v] != 0, counts[v] + history.Count(v));
  }
};

}  // namespace foredraft::cuda

#endif  // FOREDRAFT_KERNELS_CUDA_LOGIT_ROW_H_
