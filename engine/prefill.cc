#include "engine/prefill.h"

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "engine/verifier.h"

namespace foredraft {
namespace {

RankRows OfRanks(const std::vector<int32_t>& counts) {
  CHECK_LE(counts.size(), size_t{kMaxRanks});
  RankRows rows;
  std::copy(counts.begin(), counts.end(), rows.rows.begin());
  return rows;
}

ChunkRows RowsOf(std::span<const PrefillChunk> chunks) {
  ChunkRows rows;
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

bool HasFirstMask(const RankPlan& plan, int32_t slot) {
  return std::any_of(plan.first_masks.begin(), plan.first_masks.end(),
                     [slot](const FirstMask& mask) { return mask.slot == slot; });
}

// Chooses the first token of each prompt that ends in this prefill, and up to `draft_count` drafts for each.
void FirstTokens(Rank& rank, const RankPlan& plan, const ChunkRows& target, const RankRows& rank_ended,
                 int draft_count) {
  if (rank_ended.total() == 0) return;
  const std::span<const PrefillChunk> chunks = plan.prefill_chunks;
  SamplingMode sampling_mode = SamplingMode::kArgmax;
  ChunkRows ended;
  std::vector<int32_t> target_rows;
  for (size_t i = 0; i < chunks.size(); ++i) {
    if (!chunks[i].last) continue;
    if (!rank.slots.greedy(chunks[i].slot)) sampling_mode = SamplingMode::kSample;
    CHECK(!rank.slots.needs_first_mask(chunks[i].slot) || HasFirstMask(plan, chunks[i].slot))
        << "no-mask-no-token: slot " << chunks[i].slot;
    const int row = target.spans[i].first_row + target.spans[i].row_count - 1;
    target_rows.push_back(row);
    ended.ids.push_back(target.ids[row]);
    ended.slots.push_back(target.slots[row]);
    ended.positions.push_back(target.positions[row]);
  }
  const StepBuffers& b = rank.buffers;
  const Matrix<float> ended_output = b.ended_output.first_rows(ended.count());
  Upload(*rank.device, *rank.stream, target_rows, b.ended_index);
  Upload(*rank.device, *rank.stream, ended, b.ended);
  rank.ops().copy_rows(
      *rank.stream,
      {.out = ended_output, .x = b.target_output, .x_index = b.ended_index, .rows = ended.count()});
  AcceptFirstTokens(rank, rank_ended, ended.count(), sampling_mode,
                    rank.parts.masks.SetFirst(*rank.stream, plan, ended.slots));
  if (rank.drafter == nullptr) return;
  rank.drafter->FirstDraft(rank.step(),
                           {.outputs = b.first_outputs,
                            .target_output = ended_output,
                            .bucket = ended.count(),
                            .draft_len = 0,
                            .sampling_mode = sampling_mode,
                            .rank_rows = &rank_ended},
                           draft_count);
}

}  // namespace

void RunPrefill(Rank& rank, const IterationPlan& plan, int index, const std::function<bool()>* abandoned) {
  const StepBuffers& b = rank.buffers;
  const std::vector<PrefillChunk>& chunks = plan.ranks[index].prefill_chunks;
  const ChunkRows rows = RowsOf(chunks);
  const RankRows rank_rows = OfRanks(plan.prefill_rows);
  CHECK_EQ(rows.count(), rank_rows[index]) << "rank " << index << ", iteration " << plan.number;
  for (const PrefillChunk& chunk : chunks) rank.slots.CountPrompt(*rank.stream, chunk.slot, chunk.token_ids);
  Upload(*rank.device, *rank.stream, rows, b.target);
  const Batch batch = {.index = b.target.index(rows.count()),
                       .ids = b.target.ids,
                       .spans = rows.spans,
                       .rank_rows = &rank_rows,
                       .abandoned = abandoned};
  rank.model->RunTarget(*rank.stream, batch, rank.cache, b.target_output.first_rows(rows.count()));
  if (rank.drafter != nullptr && !batch.is_abandoned())
    rank.drafter->Prompt(rank.step(), rank.slots, rows, rank_rows);
  FirstTokens(rank, plan.ranks[index], rows, OfRanks(plan.ended_prompts), plan.draft_len);
}

}  // namespace foredraft
