#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/attention/best_entries.h"
#include "kernels/cpu/attention/key_tile.h"
#include "kernels/cpu/common/scratch.h"
#include "kernels/cpu/common/vector_math.h"
#include "kernels/cpu/device/kernels.h"

namespace foredraft::cpu {
namespace {

constexpr int32_t kBlockTiles = 4;  // tiles of entries that one item scores
constexpr int32_t kBlockLen = kBlockTiles * kTileLen;
constexpr int32_t kMaxGroupRows = 8;  // Kmax + 1

// Adjacent rows of one slot, which share the packed entries of an item.
struct ScoredRows {
  int32_t first_row;
  int32_t row_count;
  int32_t visible;  // the most entries that any of these rows sees: more than top_k
};

// Returns the number of groups; `groups` has room for as many as there are rows.
int32_t FindGroups(const SelectEntriesParams& p, ScoredRows* groups) {
  int32_t count = 0;
  for (int32_t r = 0; r < p.index.rows; ++r) {
    const int32_t visible = p.visible(r);
    if (visible <= p.top_k) continue;
    ScoredRows* const last = count > 0 ? groups + count - 1 : nullptr;
    if (last != nullptr && last->first_row + last->row_count == r && last->row_count < kMaxGroupRows &&
        p.index.slots[r - 1] == p.index.slots[r]) {
      ++last->row_count;
      last->visible = std::max(last->visible, visible);
    } else {
      groups[count++] = {r, 1, visible};
    }
  }
  return count;
}

// scores[t] += relu(dots[h][t]) * (weights[h] * scale), h ascending.
FOREDRAFT_WIDE void AddHeads(const float* dots, const float* weights, float scale, int32_t head_count,
                             int32_t count, float* scores) {
  for (int32_t h = 0; h < head_count; ++h) {
    const float weight = weights[h] * scale;
    const float* const of_head = dots + h * kTileLen;
    for (int32_t t = 0; t < count; ++t) scores[t] += (of_head[t] > 0.0f ? of_head[t] : 0.0f) * weight;
  }
}

struct alignas(64) ScoreLine {
  Bf16Pair pairs[16];
};

// Indexer entries of a tile.
struct EntryRows {
  int32_t count;  // 0: past the last that the group sees
  const void* rows[kTileLen];
};

// The scores of a group's rows for one block of entries. A score is computed by the same operations whatever
// else is in its tile or group (kernels/cpu/device/isa.h).
class BlockScores {
 public:
  BlockScores(const IsaKernels& isa, const SelectEntriesParams& p)
      : isa_(isa), p_(p), shape_{p.entries.width, 0, 0} {
    const size_t tile_pairs = static_cast<size_t>(shape_.pairs()) * kTileLen;
    const size_t query_pairs = static_cast<size_t>(kMaxGroupRows) * p.head_count * shape_.pairs();
    ScoreLine* const lines = ThreadScratch<ScoreLine>((tile_pairs + query_pairs) / 16 + 1);
    keys_ = lines->pairs;
    queries_ = keys_ + tile_pairs;
  }

  // Scores entries first_entry + [first, first + kBlockLen), as far as rows see them. A tile's entries are
  // prefetched while the previous tile is packed and scored: packing alone would wait for memory most of its
  // time.
  void Run(const ScoredRows& group, int32_t first) {
    PackQueries(group);
    const int32_t end = std::min(first + kBlockLen, group.visible);
    EntryRows memory[2];
    EntryRows* rows = memory;
    EntryRows* next = memory + 1;
    FindRows(group, first, *rows);
    for (int32_t begin = first; begin < end; begin += kTileLen) {
      FindRows(group, begin + kTileLen, *next);
      RowPrefetch prefetch = {next->rows, next->count, p_.entries.width * static_cast<int32_t>(sizeof(bf16))};
      Pack(*rows, prefetch);
      for (int32_t row = 0; row < group.row_count; ++row) {
        const int32_t visible = p_.visible(group.first_row + row);
        if (visible > begin) ScoreTile(group, row, begin, std::min(kTileLen, visible - begin), prefetch);
      }
      FetchRest(prefetch);
      std::swap(rows, next);
    }
  }

 private:
  const Bf16Pair* Query(int32_t row, int32_t head) const {
    return queries_ + (int64_t{row} * p_.head_count + head) * shape_.pairs();
  }

  void PackQueries(const ScoredRows& group) {
    if (packed_row_ == group.first_row) return;
    packed_row_ = group.first_row;
    Bf16Pair* out = queries_;
    for (int32_t row = 0; row < group.row_count; ++row) {
      const bf16* q = p_.q.row(group.first_row + row);
      for (int32_t head = 0; head < p_.head_count; ++head, q += p_.entries.width, out += shape_.pairs()) {
        PackQuery(shape_, q, q, out);
      }
    }
  }

  // Finds at most a tile of entries, from `begin` on.
  void FindRows(const ScoredRows& group, int32_t begin, EntryRows& out) const {
    const int32_t slot = p_.index.slots[group.first_row];
    out.count = std::clamp(group.visible - begin, 0, kTileLen);
    for (int32_t t = 0; t < out.count;) {
      // Entries of a block are adjacent: the block table is read once per block.
      const int32_t entry = p_.first_entry + begin + t;
      const bf16* row = p_.entries.row(slot, entry);
      CHECK(row != nullptr) << "slot " << slot << " has no indexer entry " << entry;
      const int32_t of_block = p_.entries.rows_per_block - entry % p_.entries.rows_per_block;
      const int32_t end = std::min(out.count, t + of_block);
      for (; t < end; ++t, row += p_.entries.width) out.rows[t] = row;
    }
  }

  // Fetches lines that the kernels had no step for.
  static void FetchRest(RowPrefetch& prefetch) {
    for (; prefetch.row < prefetch.count; ++prefetch.row, prefetch.offset = 0) {
      const char* const row = static_cast<const char*>(prefetch.rows[prefetch.row]);
      for (; prefetch.offset < prefetch.bytes; prefetch.offset += 64)
        __builtin_prefetch(row + prefetch.offset, 0, 2);
    }
  }

  void Pack(const EntryRows& entries, RowPrefetch& prefetch) const {
    const uint16_t* rows[kTileLen];
    for (int32_t t = 0; t < kTileLen; ++t) {
      rows[t] = &static_cast<const bf16*>(entries.rows[std::min(t, entries.count - 1)])->bits;
    }
    isa_.pack_keys({keys_, rows, entries.count, shape_.a_len, &prefetch});
  }

  void ScoreTile(const ScoredRows& group, int32_t row, int32_t begin, int32_t count,
                 RowPrefetch& prefetch) const {
    alignas(64) float dots[kMaxTileQueries * kTileLen];
    int32_t counts[kMaxTileQueries];
    std::fill_n(counts, kMaxTileQueries, count);
    const int32_t r = group.first_row + row;
    float* const scores = p_.scores.row(r) + begin;
    std::fill_n(scores, count, 0.0f);
    for (int32_t head = 0; head < p_.head_count; head += kMaxTileQueries) {
      const int32_t heads = std::min(kMaxTileQueries, p_.head_count - head);
      isa_.tile_scores({dots, Query(row, head), keys_, counts, shape_.pairs(), heads, &prefetch});
      AddHeads(dots, p_.weights.row(r) + head, p_.scale, heads, count, scores);
    }
  }

  const IsaKernels& isa_;
  const SelectEntriesParams& p_;
  const TileShape shape_;
  int32_t packed_row_ = -1;  // the first of the group whose queries are packed
  Bf16Pair* keys_;           // [pairs][kTileLen]
  Bf16Pair* queries_;        // [kMaxGroupRows][head_count][pairs]
};

}  // namespace

void SelectEntries(const CpuContext& context, const SelectEntriesParams& p) {
  ScoredRows* const groups = ThreadScratch<ScoredRows>(std::max(1, p.index.rows));
  const int32_t group_count = FindGroups(p, groups);
  int32_t most = 0;  // of entries that any row has to score
  for (int32_t g = 0; g < group_count; ++g) most = std::max(most, groups[g].visible);
  CHECK_LE(most, p.scores.cols);
  const int64_t blocks = (most + kBlockLen - 1) / kBlockLen;
  const int64_t cost = int64_t{kBlockLen} * p.head_count * p.entries.width / 16;
  context.pool.ParallelFor(group_count * blocks, cost, [&](int64_t begin, int64_t end) {
    BlockScores scores(context.isa, p);
    for (int64_t item = begin; item < end; ++item) {
      const ScoredRows& group = groups[item / blocks];
      const int32_t first = static_cast<int32_t>(item % blocks) * kBlockLen;
      if (first < group.visible) scores.Run(group, first);
    }
  });
  context.pool.ParallelFor(p.index.rows, 16 * most + p.top_k, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      int32_t* const selected = p.selected + r * p.top_k;
      const int32_t visible = p.visible(static_cast<int32_t>(r));
      if (visible > p.top_k) {
        SelectBest(p.scores.row(r), visible, p.first_entry, p.top_k, selected);
        continue;
      }
      for (int32_t i = 0; i < p.top_k; ++i) selected[i] = i < visible ? p.first_entry + i : -1;
    }
  });
}

}  // namespace foredraft::cpu
