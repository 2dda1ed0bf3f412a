#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/attend.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

// Adjacent rows of one head, which share a pass over its keys.
struct HeadBlock {
  int32_t head;
  int32_t first_row;
  int32_t row_count;
};

// The rows' softmax over earlier segments lies in p.state: per head value_dim sums, the largest score, the
// sum of the weights.
class PrefillBlock {
 public:
  PrefillBlock(const MlaPrefillParams& p, const TileShape& shape, const HeadBlock& block)
      : p_(p), block_(block), scratch_(shape, block.row_count), sums_(scratch_.sums()) {
    queries_.shape = shape;
    queries_.scale = p.scale;
    queries_.count = block.row_count;
    queries_.queries = scratch_.queries();
    const int64_t head_dim = shape.a_len + shape.b_len;
    for (int32_t i = 0; i < block.row_count; ++i) {
      const bf16* q = p.q.row(block.first_row + i) + block.head * head_dim;
      PackQuery(shape, q, q + shape.a_len, queries_.queries + int64_t{i} * shape.pairs());
      queries_.last_positions[i] = p.chunk_first + block.first_row + i;
    }
  }

  void Run(const IsaKernels& isa) {
    const int32_t segment_end = p_.segment_first + p_.kv.rows;
    const int32_t end = std::min(queries_.last_positions[queries_.count - 1] + 1, segment_end);
    if (p_.segment_first > p_.first_position) Load();
    for (int32_t begin = p_.segment_first; begin < end; begin = TileEnd(begin)) {
      const TileRows rows = FindRows(begin, std::min(end, TileEnd(begin)));
      const void* next_rows[kTileLen];
      RowPrefetch next = PrefetchOf(TileEnd(begin), std::min(end, TileEnd(TileEnd(begin))), next_rows);
      PackTile(isa, queries_.shape, rows, next, scratch_.packed());
      AttendTile(isa, queries_, scratch_.packed(), begin, rows.count, begin == p_.first_position, next,
                 sums_);
    }
    for (int32_t i = 0; i < queries_.count; ++i) {
      if (queries_.last_positions[i] < segment_end) {
        FinishQuery(queries_.shape, i, sums_,
                    p_.out.row(block_.first_row + i) + int64_t{block_.head} * p_.value_dim);
      } else {
        Store(i);
      }
    }
  }

 private:
  TileRows FindRows(int32_t begin, int32_t end) const {
    TileRows rows;
    rows.begin = begin;
    rows.count = end - begin;
    for (int32_t t = 0; t < kTileLen; ++t) {
      const int32_t position = std::min(begin + t, end - 1);
      const bf16* const kv = KvOf(position);
      rows.a[t] = &kv->bits;
      rows.b[t] = &p_.k_pe.row(position - p_.segment_first)->bits;
      rows.value[t] = &(kv + p_.nope_dim)->bits;
    }
    return rows;
  }
  // The head's adjacent keys and values.
  const bf16* KvOf(int32_t position) const {
    return p_.kv.row(position - p_.segment_first) + int64_t{block_.head} * (p_.nope_dim + p_.value_dim);
  }
  // A cursor over the head's keys and values of [begin, end), none if that is empty.
  RowPrefetch PrefetchOf(int32_t begin, int32_t end, const void** rows) const {
    for (int32_t position = begin; position < end; ++position) rows[position - begin] = KvOf(position);
    return {rows, std::max(0, end - begin),
            static_cast<int32_t>((p_.nope_dim + p_.value_dim) * sizeof(bf16))};
  }

  float* StateOf(int32_t i) const {
    return p_.state.row(block_.first_row + i) + int64_t{block_.head} * (p_.value_dim + kPrefillStateExtra);
  }
  float* SumsOf(int32_t i) const { return sums_.acc + int64_t{i} * queries_.shape.width(); }
  void Load() {
    for (int32_t i = 0; i < queries_.count; ++i) {
      const float* state = StateOf(i);
      std::fill_n(std::copy_n(state, p_.value_dim, SumsOf(i)), queries_.shape.width() - p_.value_dim, 0.0f);
      sums_.max[i] = state[p_.value_dim];
      sums_.sum[i] = state[p_.value_dim + 1];
    }
  }
  void Store(int32_t i) {
    float* const state = StateOf(i);
    std::copy_n(SumsOf(i), p_.value_dim, state);
    state[p_.value_dim] = sums_.max[i];
    state[p_.value_dim + 1] = sums_.sum[i];
  }

  const MlaPrefillParams& p_;
  const HeadBlock block_;
  const AttendScratch scratch_;
  const BlockSums sums_;
  QueryBlock queries_;
};

// Rows of a block. Larger blocks pack keys fewer times; enough blocks even out their lengths, as later ones
// are longer.
int32_t BlockRows(const MlaPrefillParams& p, int32_t threads) {
  constexpr int32_t kFewRows = 64;
  constexpr int32_t kBlocksPerThread = 4;
  int32_t block_rows = kMaxBlockQueries;
  while (block_rows > kFewRows &&
         int64_t{p.head_count} * p.q.rows < int64_t{kBlocksPerThread} * threads * block_rows) {
    block_rows /= 2;
  }
  return block_rows;
}

}  // namespace

void MlaPrefill(const CpuContext& context, const MlaPrefillParams& p) {
  const int32_t rows = p.q.rows;
  const bool single_window =
      p.segment_first == p.first_position && p.chunk_first + rows <= p.segment_first + p.kv.rows;
  CHECK(single_window || p.state);
  CHECK_LE(p.segment_first, p.chunk_first);
  CHECK(p.segment_first == p.first_position || p.segment_first % kTileLen == 0);
  const TileShape shape = {p.nope_dim, p.rope_dim, p.value_dim};
  const int64_t mean_keys = std::min(p.kv.rows, p.chunk_first - p.segment_first + rows / 2 + 1);
  const int32_t block_rows = BlockRows(p, context.pool.thread_count());
  const int64_t item_cost =
      mean_keys * (p.nope_dim + p.rope_dim + p.value_dim) * std::min(rows, block_rows) / 32;
  // Blocks of a head are adjacent items, so its keys stay in the CPU cache.
  const int64_t blocks = (rows + block_rows - 1) / block_rows;
  context.pool.ParallelFor(p.head_count * blocks, item_cost, [&](int64_t begin, int64_t end) {
    for (int64_t item = begin; item < end; ++item) {
      const int32_t first_row = static_cast<int32_t>(item % blocks) * block_rows;
      PrefillBlock(p, shape,
                   {static_cast<int32_t>(item / blocks), first_row, std::min(block_rows, rows - first_row)})
          .Run(context.isa);
    }
  });
}

}  // namespace foredraft::cpu
