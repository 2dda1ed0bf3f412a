#pragma once

// The largest logit of a block's chunks and its lowest index, in one comparison per logit: a thread keeps the
// largest value and the chunk that has it, and only the threads that have the block's largest value read
// their chunk again for the index.
//
// What is compared is scale(logit), which never decreases with the logit, so that one call per thread and
// chunk suffices. It may give different logits the same value, so the index is found among scaled values.

#include <cstdint>

#include "kernels/cuda/sample/logit_row.h"

namespace foredraft::cuda {

struct LargestShared {
  uint32_t warps[kMaxWarps];
};

class LargestLogit {
 public:
  __device__ explicit LargestLogit(int32_t first_chunk) : chunk_(first_chunk) {}

  // Adds the thread's columns of the chunk in the stage. A NaN or +infinity makes the row unusable. Adjusted
  // logits (`adjusted`) are exempt: AdjustChunk has checked the raw ones.
  template <class Scale>
  __device__ __forceinline__ void AddChunk(const ChunkStage& stage, int32_t chunk, bool adjusted,
                                           const Scale& scale) {
    float largest = kMinusInfinity;
#pragma unroll
    for (int piece = 0; piece < kChunkPieces; ++piece) {
      const float4 four = stage.pieces[piece][threadIdx.x];
      largest = MaxOrNan(largest, MaxOrNan(MaxOrNan(four.x, four.y), MaxOrNan(four.z, four.w)));
    }
    if (!adjusted && !(largest < -kMinusInfinity)) usable_ = false;
    const float scaled = scale(largest);
    if (scaled > value_) {
      value_ = scaled;
      chunk_ = chunk;
    }
  }

  // Records that the row has NaN or +infinity.
  __device__ void MarkUnusable() { usable_ = false; }

  // The key of the block's largest logit, or one with kUnusableKey. `loaded` is the chunk in the stage;
  // load(chunk) loads the thread's columns of another one. Called by all threads of the block.
  template <class Scale, class Load>
  __device__ IndexedKeyBits KeyOfBlock(const ChunkStage& stage, int32_t loaded, const Scale& scale,
                                       const Load& load, LargestShared& shared) const {
    const uint32_t own = usable_ ? OrderedKey(value_) : kUnusableKey;
    const uint32_t largest = BlockReduce(own, Largest(), shared.warps);
    if (largest == kUnusableKey) return IndexedKey(largest, 0);
    uint32_t not_index = 0;  // the complement of the lowest index; 0: none
    if (own == largest) {
      if (chunk_ != loaded) load(chunk_);
#pragma unroll 1
      for (int i = 4 * kChunkPieces - 1; i >= 0; --i) {
        const float x = reinterpret_cast<const float*>(&stage.pieces[i / 4][threadIdx.x])[i % 4];
        if (OrderedKey(scale(x)) == largest) {
          not_index = ~static_cast<uint32_t>(PieceColumn(chunk_, i / 4) + i % 4);
        }
      }
    }
    not_index = BlockReduce(not_index, Largest(), shared.warps);
    return static_cast<IndexedKeyBits>(largest) << 32 | not_index;
  }

 private:
  float value_ = kMinusInfinity;  // scaled
  int32_t chunk_;                 // the first one with this value
  bool usable_ = true;
};

// Replaces the thread's logits in the stage by adjust(v, logit). Returns whether the raw ones are usable.
template <class Adjust>
__device__ __forceinline__ bool AdjustChunk(ChunkStage& stage, int32_t columns, int32_t chunk,
                                            const Adjust& adjust) {
  bool usable = true;
#pragma unroll 1
  for (int i = 0; i < 4 * kChunkPieces; ++i) {
    const int32_t v = PieceColumn(chunk, i / 4) + i % 4;
    if (v >= columns) continue;
    float& x = reinterpret_cast<float*>(&stage.pieces[i / 4][threadIdx.x])[i % 4];
    if (OrderedKeyOrUnusable(x) == kUnusableKey) usable = false;
    x = adjust(v, x);
  }
  return usable;
}

}  // namespace foredraft::cuda
