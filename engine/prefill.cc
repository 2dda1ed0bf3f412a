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
void Upload(const PrefillParts& parts, Stream& stream, T* device, const std::vector<T>& host) {
  parts.device.CopyToDevice(stream, device, host.data(), host.size() * sizeof(T));
}

void UploadRows(const PrefillParts& parts, Stream& stream, const RowBuffers& buffers, const Rows& rows) {
  Upload(parts, stream, buffers.ids, rows.ids);
  Upload(parts, stream, buffers.slots, rows.slots);
  Upload(parts, stream, buffers.positions, rows.positions);
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

// buffers.previous = the output of `level` one position before each row: of the row above, or the carried
// boundary.
void GatherPrevious(const PrefillParts& parts, Stream& stream, const Rows& rows, int level,
                    Matrix<const float> output) {
  std::vector<int32_t> index(rows.count());
  for (int row = 0; row < rows.count(); ++row) index[row] = row - 1;
  for (const PrefillSpan& span : rows.spans) index[span.first_row] = -1;
  Upload(parts, stream, parts.buffers.gather_index, index);
  const Ops& ops = parts.device.ops();
  ops.copy_rows(stream, {.out = parts.buffers.previous,
                         .x = output,
                         .x_index = parts.buffers.gather_index,
                         .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    if (span.first_position == 0) continue;
    ops.copy_rows(stream, {.out = parts.buffers.previous.row_range(span.first_row, 1),
                           .x = parts.slots.boundaries(level).row_range(span.slot, 1),
                           .rows = 1});
  }
}

// Keeps the output of `level` at each chunk's last position for the next chunk, and that at each block's last
// position with the block, for whoever reuses it.
void SaveBoundaries(const PrefillParts& parts, Stream& stream, const Rows& rows, int level,
                    Matrix<const float> output) {
  const int tokens_per_block = parts.cache.shape().tokens_per_block;
  std::vector<int32_t> block_of_row(rows.count(), -1);
  for (int row = 0; row < rows.count(); ++row) {
    const int position = rows.positions[row];
    if ((position + 1) % tokens_per_block == 0) {
      block_of_row[row] = parts.slots.block(rows.slots[row], position / tokens_per_block);
    }
  }
  Upload(parts, stream, parts.buffers.boundary_index, block_of_row);
  const Ops& ops = parts.device.ops();
  ops.copy_rows(stream, {.out = parts.cache.boundaries(level),
                         .x = output,
                         .out_index = parts.buffers.boundary_index,
                         .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    const int last_row = span.first_row + span.row_count - 1;
    ops.copy_rows(stream, {.out = parts.slots.boundaries(level).row_range(span.slot, 1),
                           .x = output.row_range(last_row, 1),
                           .rows = 1});
  }
}

// Vanilla's recent ids and hiddens move on to each chunk's end.
void SaveRecent(const PrefillParts& parts, Stream& stream, const Rows& rows) {
  const Ops& ops = parts.device.ops();
  const int recent_len = parts.slots.recent_len();
  if (recent_len == 0) return;
  for (const PrefillSpan& span : rows.spans) {
    const int kept = std::max(0, recent_len - span.row_count);
    const int fresh = recent_len - kept;
    const int first_fresh = span.first_row + span.row_count - fresh;
    const Matrix<float> recent = parts.slots.recent_hiddens().row_range(span.slot * recent_len, recent_len);
    const std::span<const int32_t> fresh_ids(rows.ids.data() + first_fresh, fresh);
    Upload(parts, stream, parts.slots.recent_ids() + int64_t{span.slot} * recent_len,
           parts.slots.PassRecentPrompt(span.slot, fresh_ids));
    // By way of a buffer: the old rows move within their own matrix.
    const Matrix<float> moved = parts.buffers.previous.first_rows(recent_len);
    ops.copy_rows(stream, {.out = moved, .x = recent.row_range(fresh, kept), .rows = kept});
    ops.copy_rows(stream, {.out = moved.row_range(kept, fresh),
                           .x = parts.buffers.target_output.row_range(first_fresh, fresh),
                           .rows = fresh});
    ops.copy_rows(stream, {.out = recent, .x = moved, .rows = recent_len});
  }
}

// The modules' rows of the chunks, level by level: each takes the outputs of the one below.
void PrefillModules(const PrefillParts& parts, Stream& stream, const Rows& target,
                    const RankRows& rank_rows) {
  const StepBuffers& b = parts.buffers;
  Matrix<float> output = b.target_output.first_rows(target.count());
  for (int level = 0; level < parts.slots.level_count(); ++level) {
    GatherPrevious(parts, stream, target, level, output);
    SaveBoundaries(parts, stream, target, level, output);
    output = b.module_output.first_rows(target.count());
    const Rows rows = RowsOfLevel(target, level + 1);
    UploadRows(parts, stream, b.module, rows);
    parts.model.ForwardMtp(stream, level,
                           {.index = b.module.index(rows.count()),
                            .ids = b.module.ids,
                            .spans = rows.spans,
                            .rank_rows = &rank_rows},
                           parts.cache, b.previous.first_rows(rows.count()), output);
  }
  SaveRecent(parts, stream, target);
}

void FirstTokens(const PrefillParts& parts, Stream& stream, std::span<const PrefillChunk> chunks,
                 const Rows& target, const RankRows& rank_ended, bool make_draft) {
  TokenChoice choice = TokenChoice::kArgmax;
  Rows ended;
  std::vector<int32_t> last_rows;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i].last) continue;
    if (!parts.slots.greedy(chunks[i].slot)) choice = TokenChoice::kSample;
    const int row = target.spans[i].first_row + target.spans[i].row_count - 1;
    last_rows.push_back(row);
    ended.ids.push_back(target.ids[row]);
    ended.slots.push_back(target.slots[row]);
    ended.positions.push_back(target.positions[row]);
  }
  if (rank_ended.total() == 0) return;
  const StepBuffers& b = parts.buffers;
  Upload(parts, stream, b.gather_index, last_rows);
  Upload(parts, stream, b.ended_slots, ended.slots);
  UploadRows(parts, stream, b.module, ended);
  parts.device.ops().copy_rows(
      stream, {.out = b.previous, .x = b.target_output, .x_index = b.gather_index, .rows = ended.count()});
  AcceptFirstTokens(parts.device.ops(), stream, parts.model, parts.slots, b, ended.count(), choice);
  if (parts.drafter == nullptr) return;
  parts.drafter->FirstDraft(stream,
                            {.outputs = b.first_outputs,
                             .target_output = b.previous.first_rows(ended.count()),
                             .places = ended.count(),
                             .verified_len = 0,
                             .choice = choice,
                             .rank_places = &rank_ended},
                            make_draft);
}

}  // namespace

void RunPrefill(const PrefillParts& parts, Stream& stream, const IterationPlan& plan, int rank) {
  const std::vector<PrefillChunk>& chunks = plan.ranks[rank].prefill_chunks;
  const Rows rows = RowsOf(chunks);
  const RankRows rank_rows = OfRanks(plan.prefill_rows);
  const RankRows rank_ended = OfRanks(plan.ended_prompts);
  CHECK_EQ(rows.count(), rank_rows[rank]) << "rank " << rank << ", iteration " << plan.number;
  for (const PrefillChunk& chunk : chunks) parts.slots.CountPrompt(stream, chunk.slot, chunk.token_ids);
  UploadRows(parts, stream, parts.buffers.target, rows);
  parts.model.Forward(stream,
                      {.index = parts.buffers.target.index(rows.count()),
                       .ids = parts.buffers.target.ids,
                       .spans = rows.spans,
                       .rank_rows = &rank_rows},
                      parts.cache, parts.buffers.target_output.first_rows(rows.count()));
  if (parts.drafter != nullptr) PrefillModules(parts, stream, rows, rank_rows);
  FirstTokens(parts, stream, chunks, rows, rank_ended, plan.draft_len > 0);
}

}  // namespace foredraft
