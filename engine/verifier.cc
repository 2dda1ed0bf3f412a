#include "engine/verifier.h"

namespace foredraft {

void Verify(const Rank& rank, const StepKey& key) {
  const StepBuffers& b = rank.buffers;
  const Ops& ops = rank.ops();
  Stream& stream = *rank.stream;
  const int rows = key.rows();
  const Matrix<float> logits = b.logits.first_rows(rows);
  rank.model->Logits(stream, /*level=*/0, b.target_output.first_rows(rows), logits,
                     /*rank_rows=*/nullptr);
  SampleTokens(ops, stream, key.sampling_mode,
               {.out = b.sampled,
                .logprobs = b.logprobs,
                .logits = logits,
                .index = b.target.index(rows),
                .ids = b.target.ids,
                .row_in_slot = b.row_in_slot,
                .slots = rank.slots.arrays(),
                .scratch = b.sample_scratch.data,
                .masks = rank.parts.masks.of_step(),
                .token_count = rank.token_count});
  ops.relax_drafts(stream, {.relaxed = b.relaxed,
                            .logits = logits.columns(0, rank.token_count),
                            .index = b.target.index(rows),
                            .ids = b.target.ids,
                            .row_in_slot = b.row_in_slot,
                            .slots = rank.slots.arrays(),
                            .scratch = b.sample_scratch.data});
  ops.verify_drafts(stream, {.outputs = b.outputs,
                             .target_ids = b.sampled,
                             .relaxed = b.relaxed,
                             .live_slots = rank.parts.slots.live(),
                             .slots = rank.slots.arrays(),
                             .bucket = key.bucket,
                             .draft_len = key.draft_len,
                             .first_rows = rank.parts.cuts.first_rows(key.verify_rows)});
}

void AcceptFirstTokens(const Rank& rank, const RankRows& rank_counts, int count, SamplingMode sampling_mode,
                       const RowMasks& masks) {
  const StepBuffers& b = rank.buffers;
  Stream& stream = *rank.stream;
  const Matrix<float> logits = b.logits.first_rows(count);
  rank.model->Logits(stream, /*level=*/0, b.ended_output.first_rows(count), logits, &rank_counts);
  SampleTokens(rank.ops(), stream, sampling_mode,
               {.out = b.sampled,
                .logprobs = b.first_logprobs,
                .logits = logits,
                .index = b.ended.index(count),
                .ids = b.ended.ids,
                .slots = rank.slots.arrays(),
                .scratch = b.sample_scratch.data,
                .masks = masks,
                .token_count = rank.token_count});
  rank.ops().accept_first_token(stream, {.outputs = b.first_outputs,
                                         .tokens = b.sampled,
                                         .slot_ids = b.ended.slots,
                                         .slots = rank.slots.arrays(),
                                         .count = count});
}

}  // namespace foredraft
