#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/attend.h"
#include "kernels/cpu/attention/kv_row_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

// The softmax of a row runs on from tile to tile inside a split; splits are counted from place 0 and added in
// order. So threads may share the splits of a row without changing its bits.
constexpr int32_t kSplitLen = 256;
static_assert(kSplitLen % kTileLen == 0);

constexpr int32_t kMaxGroupRows = 8;     // Kmax + 1
constexpr int32_t kMaxUnitQueries = 64;  // their sums, 128 KB, stay in the second-level cache

// Adjacent rows of one sequence, in order of position: with drafts, the K + 1 rows of a decode step. A row
// that attends a list is alone.
struct RowGroup {
  int32_t slot;
  int32_t first_row;
  int32_t row_count;
};

// Returns the number of groups; `groups` has room for as many as there are rows. Idle rows are in none.
int32_t FindGroups(const MlaDecodeParams& p, RowGroup* groups) {
  const RowIndex& index = p.index;
  int32_t count = 0;
  for (int32_t r = 0; r < index.rows; ++r) {
    if (index.slots[r] < 0) continue;
    RowGroup* const last = count > 0 ? groups + count - 1 : nullptr;
    const bool joins = last != nullptr && last->slot == index.slots[r] &&
                       last->first_row + last->row_count == r && last->row_count < kMaxGroupRows &&
                       index.positions[r - 1] <= index.positions[r] && !p.listed(r);
    if (joins) {
      ++last->row_count;
    } else {
      groups[count++] = {index.slots[r], r, 1};
    }
  }
  return count;
}

// How the op is cut into work for threads. It does not change bits.
struct Cut {
  const RowGroup* groups;
  int32_t group_count;
  int32_t group_rows;   // of the largest group
  int32_t split_count;  // of the longest row
  int32_t head_block;   // heads of a unit
  int32_t head_blocks;  // units of a group

  int32_t units() const { return group_count * head_blocks; }
  int32_t unit_queries() const { return group_rows * head_block; }
};

Cut MakeCut(const MlaDecodeParams& p, int32_t threads) {
  RowGroup* const groups = ThreadScratch<RowGroup>(std::max(1, p.index.rows));
  Cut cut = {.groups = groups, .group_count = FindGroups(p, groups)};
  int32_t last_place = 0;
  for (int32_t g = 0; g < cut.group_count; ++g) {
    const RowGroup& group = groups[g];
    cut.group_rows = std::max(cut.group_rows, group.row_count);
    last_place = std::max(last_place, p.last_place(group.first_row + group.row_count - 1));
  }
  cut.split_count = last_place / kSplitLen + 1;
  // A unit takes all heads, which share a packed tile; fewer if threads would lack items.
  constexpr int32_t kFewHeads = 4;
  cut.head_block = std::min(p.head_count, kMaxUnitQueries / std::max(1, cut.group_rows));
  while (cut.head_block > kFewHeads &&
         int64_t{cut.group_count} * cut.split_count * ((p.head_count + cut.head_block - 1) / cut.head_block) <
             threads) {
    cut.head_block = (cut.head_block + 1) / 2;
  }
  cut.head_blocks = (p.head_count + cut.head_block - 1) / cut.head_block;
  return cut;
}

// Some heads of a group of rows: the queries of a block, row by row.
class Unit {
 public:
  Unit(const MlaDecodeParams& p, const Cut& cut, int64_t index)
      : p_(p),
        group_(cut.groups[index / cut.head_blocks]),
        first_head_(static_cast<int32_t>(index % cut.head_blocks) * cut.head_block),
        head_count_(std::min(cut.head_block, p.head_count - first_head_)) {
    block_.shape = CacheTileShape(p.layer);
    block_.scale = p.scale;
    block_.count = group_.row_count * head_count_;
    for (int32_t row = 0, q = 0; row < group_.row_count; ++row) {
      const int32_t last_place = p.last_place(group_.first_row + row);
      for (int32_t head = 0; head < head_count_; ++head) block_.last_positions[q++] = last_place;
    }
    CHECK_LE(p.first_position, block_.last_positions[0]);
  }

  const QueryBlock& block() const { return block_; }
  int32_t last_place() const { return block_.last_positions[block_.count - 1]; }
  int32_t split_count() const { return last_place() / kSplitLen + 1; }

  // Sums a split's places for the queries that attend any.
  void AttendSplit(const IsaKernels& isa, int32_t split, const AttendScratch& scratch,
                   const BlockSums& sums) {
    if (block_.queries == nullptr) PackQueries(isa, scratch.queries());
    const int32_t first = std::max(p_.first_position, split * kSplitLen);
    const int32_t end = std::min(last_place() + 1, (split + 1) * kSplitLen);
    TileRows tile_rows;
    CacheRows memory[2];
    CacheRows* rows = memory;
    CacheRows* next = memory + 1;
    *rows = FindRows(first);
    while (rows->count > 0 && rows->begin < end) {
      *next = FindRows(rows->begin + rows->count);
      RowPrefetch prefetch = PrefetchOf(p_.layer, *next);
      const KeyTile tile = PackCacheRows(isa, p_.layer, *rows, prefetch, scratch.packed(), tile_rows);
      AttendTile(isa, block_, tile, rows->begin, rows->count, rows->begin == first, prefetch, sums);
      std::swap(rows, next);
    }
  }

  bool Attends(int32_t query, int32_t split) const {
    return split == 0 || block_.last_positions[query] >= split * kSplitLen;
  }

  void Finish(const IsaKernels& isa, int32_t query, const BlockSums& sums) const {
    const int32_t width = block_.shape.width();
    if (TakesRows(isa, block_.shape)) isa.order_sums(sums.acc + int64_t{query} * width, width);
    FinishQuery(block_.shape, query, sums, p_.out.row(RowOf(query)) + HeadOf(query) * p_.layer.latent_dim);
  }

 private:
  int32_t RowOf(int32_t query) const { return group_.first_row + query / head_count_; }
  int64_t HeadOf(int32_t query) const { return first_head_ + query % head_count_; }

  // The cache rows of the places from `begin` on, at most to the end of their tile.
  CacheRows FindRows(int32_t begin) const {
    const int32_t row = group_.first_row;
    if (!p_.listed(row)) return FindCacheRows(p_.layer, group_.slot, begin, last_place());
    CacheRows rows;
    rows.begin = begin;
    rows.count = std::max(0, std::min(last_place() + 1, TileEnd(begin)) - begin);
    for (int32_t t = 0; t < rows.count; ++t) {
      rows.rows[t] = p_.layer.row(group_.slot, p_.position_at(row, begin + t));
    }
    return rows;
  }

  // A query rounded as an FP8 cache row: codes times scales, which BF16 holds exactly.
  const bf16* Rounded(const IsaKernels& isa, const bf16* q_lat) const {
    const KvRowLayout layout = p_.layer.layout();
    uint8_t* const row = ThreadScratch<uint8_t>(layout.bytes());
    bf16* const rounded = ThreadScratch<bf16>(layout.latent_dim);
    EncodeLatent(q_lat, layout, row);
    DecodeLatent(isa, row, layout, rounded);
    return rounded;
  }

  void PackQueries(const IsaKernels& isa, Bf16Pair* memory) {
    block_.queries = memory;
    const int32_t latent = p_.layer.latent_dim;
    for (int32_t q = 0; q < block_.count; ++q, memory += block_.shape.pairs()) {
      const bf16* const q_lat = p_.q_lat.row(RowOf(q)) + HeadOf(q) * latent;
      PackQuery(block_.shape, p_.layer.fp8_products ? Rounded(isa, q_lat) : q_lat,
                p_.q.row(RowOf(q)) + (HeadOf(q) + 1) * p_.head_dim - p_.layer.rope_dim, memory);
    }
  }

  const MlaDecodeParams& p_;
  const RowGroup group_;
  const int32_t first_head_;
  const int32_t head_count_;
  QueryBlock block_{};
};

// Cost in the thread pool's unit, a scalar operation.
int64_t SplitCost(const MlaDecodeParams& p, const Cut& cut) {
  return int64_t{kSplitLen} * (cut.unit_queries() + 8) * (2 * p.layer.latent_dim + p.layer.rope_dim) / 32;
}

// Each unit runs on one thread.
void AttendUnits(const CpuContext& context, const MlaDecodeParams& p, const Cut& cut) {
  context.pool.ParallelFor(cut.units(), SplitCost(p, cut) * cut.split_count, [&](int64_t begin, int64_t end) {
    const AttendScratch scratch(CacheTileShape(p.layer), cut.unit_queries());
    for (int64_t index = begin; index < end; ++index) {
      Unit unit(p, cut, index);
      const QueryBlock& block = unit.block();
      for (int32_t split = 0; split < unit.split_count(); ++split) {
        unit.AttendSplit(context.isa, split, scratch, split == 0 ? scratch.sums() : scratch.later());
        for (int32_t q = 0; split > 0 && q < block.count; ++q) {
          if (unit.Attends(q, split)) AddSums(block.shape, q, scratch.later(), scratch.sums());
        }
      }
      for (int32_t q = 0; q < block.count; ++q) unit.Finish(context.isa, q, scratch.sums());
    }
  });
}

struct alignas(64) SharedLine {
  float floats[16];
};

// Few units: threads share the splits of each. `wave` splits are computed at a time, then added in order.
void AttendSplits(const CpuContext& context, const MlaDecodeParams& p, const Cut& cut, int32_t wave) {
  const TileShape shape = CacheTileShape(p.layer);
  const int32_t queries = cut.unit_queries();
  const int64_t lines = static_cast<int64_t>(BlockSums::Floats(shape, queries) + 15) / 16;
  // Per unit: the sums so far, then those of the wave.
  SharedLine* const memory = ThreadScratch<SharedLine>(lines * cut.units() * (wave + 1));
  const auto sums_of = [&](int64_t unit, int32_t index) {
    return BlockSums::At(memory[lines * (unit * (wave + 1) + index)].floats, shape, queries);
  };
  for (int32_t first = 0; first < cut.split_count; first += wave) {
    const int32_t count = std::min(wave, cut.split_count - first);
    context.pool.ParallelFor(int64_t{cut.units()} * count, SplitCost(p, cut),
                             [&](int64_t begin, int64_t end) {
                               const AttendScratch scratch(shape, queries);
                               for (int64_t item = begin; item < end; ++item) {
                                 const int32_t index = static_cast<int32_t>(item % count);
                                 Unit unit(p, cut, item / count);
                                 unit.AttendSplit(context.isa, first + index, scratch,
                                                  sums_of(item / count, first == 0 ? index : index + 1));
                               }
                             });
    const int64_t add_cost = int64_t{count} * shape.width() / 4;
    context.pool.ParallelFor(int64_t{cut.units()} * queries, add_cost, [&](int64_t begin, int64_t end) {
      for (int64_t item = begin; item < end; ++item) {
        const int64_t index = item / queries;
        const int32_t query = static_cast<int32_t>(item % queries);
        const Unit unit(p, cut, index);
        if (query >= unit.block().count) continue;
        for (int32_t split = std::max(1, first); split < first + count && unit.Attends(query, split);
             ++split) {
          AddSums(shape, query, sums_of(index, first == 0 ? split : split - first + 1), sums_of(index, 0));
        }
        if (first + count == cut.split_count) unit.Finish(context.isa, query, sums_of(index, 0));
      }
    });
  }
}

}  // namespace

void MlaDecode(const CpuContext& context, const MlaDecodeParams& p) {
  const int32_t threads = context.pool.thread_count();
  const Cut cut = MakeCut(p, threads);
  if (cut.group_count == 0) return;
  constexpr int32_t kUnitsPerThread = 4;  // enough to even out their lengths
  const int32_t wanted = kUnitsPerThread * threads;
  if (threads == 1 || cut.split_count == 1 || cut.units() >= wanted) {
    AttendUnits(context, p, cut);
  } else {
    AttendSplits(context, p, cut, std::min(cut.split_count, wanted / cut.units() + 1));
  }
}

}  // namespace foredraft::cpu
