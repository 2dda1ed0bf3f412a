#include "engine/prefill.h"

#include <algorithm>
#include <vector>

#include "engine/spec/verifier.h"

namespace foredraft {
namespace {

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

// Level 1 starts at position 1: a sequence's first row is idle there.
Rows ModuleRows(const Rows& target) {
  Rows rows = target;
  rows.spans.clear();
  for (PrefillSpan span : target.spans) {
    if (span.first_position == 0) {
      rows.slots[span.first_row] = -1;
      ++span.first_row;
      ++span.first_position;
      --span.row_count;
    }
    if (span.row_count > 0) rows.spans.push_back(span);
  }
  return rows;
}

// buffers.previous = the target's output one position before each row: of the row above, or the carried
// boundary.
void GatherPrevious(const PrefillParts& parts, Stream& stream, const Rows& rows) {
  std::vector<int32_t> index(rows.count());
  for (int row = 0; row < rows.count(); ++row) index[row] = row - 1;
  for (const PrefillSpan& span : rows.spans) index[span.first_row] = -1;
  Upload(parts, stream, parts.buffers.gather_index, index);
  const Ops& ops = parts.device.ops();
  ops.copy_rows(stream, {.out = parts.buffers.previous,
                         .x = parts.buffers.target_output,
                         .x_index = parts.buffers.gather_index,
                         .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    if (span.first_position == 0) continue;
    ops.copy_rows(stream, {.out = parts.buffers.previous.row_range(span.first_row, 1),
                           .x = parts.slots.boundaries().row_range(span.slot, 1),
                           .rows = 1});
  }
}

// Keeps the output of each chunk's last position for the next chunk, and that of each block's last position
// with the block, for whoever reuses it.
void SaveBoundaries(const PrefillParts& parts, Stream& stream, const Rows& rows) {
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
  ops.copy_rows(stream, {.out = parts.cache.boundaries(),
                         .x = parts.buffers.target_output,
                         .out_index = parts.buffers.boundary_index,
                         .rows = rows.count()});
  for (const PrefillSpan& span : rows.spans) {
    const int last_row = span.first_row + span.row_count - 1;
    ops.copy_rows(stream, {.out = parts.slots.boundaries().row_range(span.slot, 1),
                           .x = parts.buffers.target_output.row_range(last_row, 1),
                           .rows = 1});
  }
}

void PrefillModule(const PrefillParts& parts, Stream& stream, const Rows& target) {
  const Rows rows = ModuleRows(target);
  GatherPrevious(parts, stream, target);
  SaveBoundaries(parts, stream, target);
  if (rows.spans.empty()) return;
  UploadRows(parts, stream, parts.buffers.module, rows);
  parts.drafter->Prefill(stream, rows.spans, rows.count());
}

void FirstTokens(const PrefillParts& parts, Stream& stream, std::span<const PrefillChunk> chunks,
                 const Rows& target, bool make_draft) {
  Rows ended;
  std::vector<int32_t> last_rows;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i].last) continue;
    const int row = target.spans[i].first_row + target.spans[i].row_count - 1;
    last_rows.push_back(row);
    ended.ids.push_back(target.ids[row]);
    ended.slots.push_back(target.slots[row]);
    ended.positions.push_back(target.positions[row]);
  }
  if (last_rows.empty()) return;
  const StepBuffers& b = parts.buffers;
  Upload(parts, stream, b.gather_index, last_rows);
  Upload(parts, stream, b.ended_slots, ended.slots);
  UploadRows(parts, stream, b.module, ended);
  parts.device.ops().copy_rows(
      stream, {.out = b.previous, .x = b.target_output, .x_index = b.gather_index, .rows = ended.count()});
  AcceptFirstTokens(parts.device.ops(), stream, parts.model, parts.slots, b, ended.count());
  if (parts.drafter == nullptr) return;
  parts.drafter->Draft(stream,
                       {.outputs = b.first_outputs,
                        .target_output = b.previous.first_rows(ended.count()),
                        .places = ended.count(),
                        .verified_len = 0},
                       make_draft ? 1 : 0);
}

}  // namespace

void RunPrefill(const PrefillParts& parts, Stream& stream, std::span<const PrefillChunk> chunks,
                bool make_draft) {
  const Rows rows = RowsOf(chunks);
  for (const PrefillChunk& chunk : chunks) parts.slots.CountPrompt(stream, chunk.slot, chunk.token_ids);
  UploadRows(parts, stream, parts.buffers.target, rows);
  parts.model.Forward(stream,
                      {.index = parts.buffers.target.index(rows.count()),
                       .ids = parts.buffers.target.ids,
                       .spans = rows.spans},
                      parts.cache, parts.buffers.target_output.first_rows(rows.count()));
  if (parts.drafter != nullptr) PrefillModule(parts, stream, rows);
  FirstTokens(parts, stream, chunks, rows, make_draft);
  stream.Synchronize();
}

}  // namespace foredraft
