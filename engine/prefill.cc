#include "engine/prefill.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "engine/spec/verifier.h"

namespace foredraft {
namespace {

RankRows OfRanks(const std::vector<int32_t>& counts) {
  CHECK_LE(counts.size(), size_t{kMaxRanks});
  RankRows rows;
  std::copy(counts.begin(), counts.end(), rows.rows.begin());
  return rows;
}

// The rows of the forward, on the host.
struct Rows {
  std::vector<int32_t> ids;
  std::vector<int32_t> slots;
  std::vector<int32_t> positions;
  std::vector<PrefillSpan> spans;

  int count() const { return static_cast<int>(ids.size()); }
};

Rows RowsOf(std::span<const PrefillChunk> chunks) {
  Rows rows;
  for (const PrefillChunk& chunk : chunks) {
    const int count = static_cast<int>(chunk.token_ids.size());
    rows.spans.push_back({.slot = chunk.slot,
                          .first_row = rows.count(),
                          .row_count = count,
                          .first_position = chunk.first_position});
    rows.ids.insert(rows.ids.end(), chunk.token_ids.begin(), chunk.token_ids.end());
    for (int i = 0; i < count; ++i) {
      rows.slots.push_back(chunk.slot);
      rows.positions.push_back(chunk.first_position + i);
    }
  }
  return rows;
}

template <class T>
void Upload(const Rank& rank, T* device, const std::vector<T>& host) {
  rank.device->CopyToDevice(*rank.stream, device, host.data(), host.size() * sizeof(T));
}

void UploadRows(const Rank& rank, const RowBuffers& buffers, const Rows& rows) {
  Upload(rank, buffers.ids, rows.ids);
  Upload(rank, buffers.slots, rows.slots);
  Upload(rank, buffers.positions, rows.positions);
}

// `level` starts at position `level`: a sequence's lower rows are idle there.
Rows RowsOfLevel(const Rows& target, int level) {
  Rows rows = target;
  rows.spans.clear();
  for (PrefillSpan span : target.spans) {
    const int skipped = std::clamp(level - span.first_position, 0, span.row_count);
    std::fill_n(rows.slots.begin() + span.first_row, skipped, -1);
    span.first_row += skipped;
    span.first_position += skipped;
    span.row_count -= skipped;
    if (span.row_count > 0) rows.spans.push_back(span);
  }
  return rows;
}

// buffers.previous = the output of `level` one position before each row: of the row above, or for a chunk's
// first row the slot's boundary.
void GatherPrevious(const Rank& rank, const Rows& rows, int level, Matrix<const float> output) {
  const StepBuffers& b = rank.buffers;
  const Ops& ops = rank.ops();
  std::vector<int32_t> index(rows.count());
  for (int row = 0; row < rows.count(); ++row) index[row] = row - 1;
  for (const PrefillSpan& span : rows.spans) index[span.first_row] = -1;
  Upload(rank, b.previous_index, index);
  ops.copy_rows(*rank.stream,
                {.out = b.previous, .x = output, .x_index = b.previous_index, .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    if (span.first_position == 0) continue;
    ops.copy_rows(*rank.stream, {.out = b.previous.row_range(span.first_row, 1),
                                 .x = rank.slots.boundaries(level).row_range(span.slot, 1),
                                 .rows = 1});
  }
}

// Keeps the output of `level` at each chunk's last position for the next chunk, and that at each block's last
// position with the block, for sequences that reuse it.
void SaveBoundaries(const Rank& rank, const Rows& rows, int level, Matrix<const float> output) {
  const StepBuffers& b = rank.buffers;
  const Ops& ops = rank.ops();
  const int tokens_per_block = rank.cache.shape().tokens_per_block();
  std::vector<int32_t> block_of_row(rows.count(), -1);
  for (int row = 0; row < rows.count(); ++row) {
    const int position = rows.positions[row];
    if ((position + 1) % tokens_per_block == 0) {
      block_of_row[row] = rank.slots.history_block(rows.slots[row], position / tokens_per_block);
    }
  }
  Upload(rank, b.boundary_index, block_of_row);
  ops.copy_rows(*rank.stream, {.out = rank.cache.boundaries(level),
                               .x = output,
                               .out_index = b.boundary_index,
                               .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    const int last_row = span.first_row + span.row_count - 1;
    ops.copy_rows(*rank.stream, {.out = rank.slots.boundaries(level).row_range(span.slot, 1),
                                 .x = output.row_range(last_row, 1),
                                 .rows = 1});
  }
}

// Updates Vanilla's recent ids and hiddens to the end of each chunk.
void SaveRecent(Rank& rank, const Rows& rows) {
  const Ops& ops = rank.ops();
  const int recent_len = rank.slots.recent_len();
  if (recent_len == 0) return;
  for (const PrefillSpan& span : rows.spans) {
    const int kept = std::max(0, recent_len - span.row_count);
    const int fresh = recent_len - kept;
    const int first_fresh = span.first_row + span.row_count - fresh;
    const Matrix<float> recent = rank.slots.recent_hiddens().row_range(span.slot * recent_len, recent_len);
    const std::span<const int32_t> fresh_ids(rows.ids.data() + first_fresh, fresh);
    Upload(rank, rank.slots.recent_ids() + int64_t{span.slot} * recent_len,
           rank.slots.PassRecentPrompt(span.slot, fresh_ids));
    // Through a buffer, because the old rows move within their own matrix.
    const Matrix<float> moved = rank.buffers.moved_recent;
    ops.copy_rows(*rank.stream, {.out = moved, .x = recent.row_range(fresh, kept), .rows = kept});
    ops.copy_rows(*rank.stream, {.out = moved.row_range(kept, fresh),
                                 .x = rank.buffers.target_output.row_range(first_fresh, fresh),
                                 .rows = fresh});
    ops.copy_rows(*rank.stream, {.out = recent, .x = moved, .rows = recent_len});
  }
}

// The modules' rows of the chunks, level by level: each takes the outputs of the one below.
void PrefillModules(Rank& rank, const Rows& target, const RankRows& rank_rows) {
  const StepBuffers& b = rank.buffers;
  Matrix<float> output = b.target_output.first_rows(target.count());
  for (int level = 0; level < rank.slots.level_count(); ++level) {
    GatherPrevious(rank, target, level, output);
    SaveBoundaries(rank, target, level, output);
    output = b.module_output.first_rows(target.count());
    const Rows rows = RowsOfLevel(target, level + 1);
    UploadRows(rank, b.module, rows);
    rank.model->RunModule(*rank.stream, level,
                          {.index = b.module.index(rows.count()),
                           .ids = b.module.ids,
                           .previous = b.previous.first_rows(rows.count()),
                           .spans = rows.spans,
                           .rank_rows = &rank_rows},
                          rank.cache, output);
  }
  SaveRecent(rank, target);
}

// The first token of each prompt that ends here, and its draft where `make_draft`.
void FirstTokens(const Rank& rank, std::span<const PrefillChunk> chunks, const Rows& target,
                 const RankRows& rank_ended, bool make_draft) {
  if (rank_ended.total() == 0) return;
  TokenChoice choice = TokenChoice::kArgmax;
  Rows ended;
  std::vector<int32_t> target_rows;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i].last) continue;
    if (!rank.slots.greedy(chunks[i].slot)) choice = TokenChoice::kSample;
    const int row = target.spans[i].first_row + target.spans[i].row_count - 1;
    target_rows.push_back(row);
    ended.ids.push_back(target.ids[row]);
    ended.slots.push_back(target.slots[row]);
    ended.positions.push_back(target.positions[row]);
  }
  const StepBuffers& b = rank.buffers;
  const Matrix<float> ended_output = b.ended_output.first_rows(ended.count());
  Upload(rank, b.ended_index, target_rows);
  UploadRows(rank, b.ended, ended);
  rank.ops().copy_rows(
      *rank.stream,
      {.out = ended_output, .x = b.target_output, .x_index = b.ended_index, .rows = ended.count()});
  AcceptFirstTokens(rank, ended.count(), choice);
  if (rank.drafter == nullptr) return;
  rank.drafter->FirstDraft(rank,
                           {.outputs = b.first_outputs,
                            .target_output = ended_output,
                            .bucket = ended.count(),
                            .draft_len = 0,
                            .choice = choice,
                            .rank_rows = &rank_ended},
                           make_draft);
}

}  // namespace

void RunPrefill(Rank& rank, const IterationPlan& plan, int index) {
  const StepBuffers& b = rank.buffers;
  const std::vector<PrefillChunk>& chunks = plan.ranks[index].prefill_chunks;
  const Rows rows = RowsOf(chunks);
  const RankRows rank_rows = OfRanks(plan.prefill_rows);
  CHECK_EQ(rows.count(), rank_rows[index]) << "rank " << index << ", iteration " << plan.number;
  for (const PrefillChunk& chunk : chunks) rank.slots.CountPrompt(*rank.stream, chunk.slot, chunk.token_ids);
  UploadRows(rank, b.target, rows);
  rank.model->RunTarget(*rank.stream,
                        {.index = b.target.index(rows.count()),
                         .ids = b.target.ids,
                         .spans = rows.spans,
                         .rank_rows = &rank_rows},
                        rank.cache, b.target_output.first_rows(rows.count()));
  if (rank.drafter != nullptr) PrefillModules(rank, rows, rank_rows);
  FirstTokens(rank, chunks, rows, OfRanks(plan.ended_prompts), plan.draft_len > 0);
}

}  // namespace foredraft
