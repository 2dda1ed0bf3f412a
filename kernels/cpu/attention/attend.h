#pragma once

// Softmax attention of a block of queries that share their keys and values: the core of mla_decode (the heads
// of adjacent rows of a sequence) and mla_prefill (the rows of a head).
//
// A query takes the tiles of the KV axis in order. Its bits depend on the query and the positions it attends,
// not on the other queries of its block, nor on how the call was divided into blocks or chunks.

#include <cstdint>

#include "kernels/cpu/attention/key_tile.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/device/isa.h"
#include "kernels/dtype.h"

namespace foredraft::cpu {

inline constexpr int32_t kMaxBlockQueries = 256;

// The softmax of a block's queries over some positions: weighted sums of the values, relative to e^max.
struct BlockSums {
  float* acc;  // [queries][width]
  float* max;  // [queries]
  float* sum;  // [queries], of the weights

  static size_t Floats(const TileShape& shape, int32_t queries) {
    return (size_t{2} + shape.width()) * queries;
  }
  // In memory[0, Floats()).
  static BlockSums At(float* memory, const TileShape& shape, int32_t queries) {
    float* const end = memory + static_cast<int64_t>(queries) * shape.width();
    return {memory, end, end + queries};
  }
};

struct QueryBlock {
  TileShape shape;
  float scale;
  int32_t count;                             // 1..kMaxBlockQueries
  int32_t last_positions[kMaxBlockQueries];  // inclusive, ascending
  Bf16Pair* queries;                         // [count][pairs]

  // The first query that attends `position`; count if none does.
  int32_t FirstAttending(int32_t position) const {
    int32_t query = 0;
    while (query < count && last_positions[query] < position) ++query;
    return query;
  }
};

// Adds the tile [begin, begin + count), whose keys and values are in `tile`, to the sums of the queries that
// attend `begin`; `first` begins the sums. Prefetches some of `next`.
void AttendTile(const IsaKernels& isa, const QueryBlock& block, const KeyTile& tile, int32_t begin,
                int32_t count, bool first, RowPrefetch& next, const BlockSums& sums);

// Adds `later`, a query's sums over later positions, to its sums.
void AddSums(const TileShape& shape, int32_t query, const BlockSums& later, const BlockSums& sums);

// out = BF16(acc / sum)
void FinishQuery(const TileShape& shape, int32_t query, const BlockSums& sums, bf16* out);

// Working memory of one thread: every part begins at a cache line.
class AttendScratch {
 public:
  // For blocks of up to `queries` queries. A later AttendScratch of this thread reuses the memory.
  AttendScratch(const TileShape& shape, int32_t queries);

  Bf16Pair* queries() const { return queries_; }
  const KeyTile& packed() const { return packed_; }
  const BlockSums& sums() const { return sums_; }
  const BlockSums& later() const { return later_; }

 private:
  Bf16Pair* queries_;
  KeyTile packed_;
  BlockSums sums_;
  BlockSums later_;
};

}  // namespace foredraft::cpu
