#include "engine/spec/verifier.h"

namespace foredraft {

void Verify(const Ops& ops, Stream& stream, const DeepseekV3& model, const SlotState& slots,
            const StepBuffers& b, const StepKey& key) {
  const int bucket = key.bucket;
  const int draft_len = key.draft_len;
  const int rows = bucket * (draft_len + 1);
  const Matrix<float> logits = b.logits.first_rows(rows);
  model.Logits(stream, b.target_output.first_rows(rows), logits);
  ChooseTokens(ops, stream, key.choice,
               {.out = b.sampled,
                .logprobs = b.logprobs,
                .logits = logits,
                .index = b.target.index(rows),
                .ids = b.target.ids,
                .row_in_slot = b.row_in_slot,
                .slots = slots.arrays(),
                .scratch = b.sample_scratch.data});
  ops.relax_drafts(stream, {.relaxed = b.relaxed,
                            .logits = logits,
                            .index = b.target.index(rows),
                            .ids = b.target.ids,
                            .row_in_slot = b.row_in_slot,
                            .slots = slots.arrays(),
                            .scratch = b.sample_scratch.data});
  ops.verify_drafts(stream, {.outputs = b.outputs,
                             .target_ids = b.sampled,
                             .relaxed = b.relaxed,
                             .live_slots = b.live_slots,
                             .slots = slots.arrays(),
                             .bucket = bucket,
                             .draft_len = draft_len});
}

void AcceptFirstTokens(const Ops& ops, Stream& stream, const DeepseekV3& model, const SlotState& slots,
                       const StepBuffers& b, int count, TokenChoice choice) {
  const Matrix<float> logits = b.logits.first_rows(count);
  model.Logits(stream, b.previous.first_rows(count), logits);
  ChooseTokens(ops, stream, choice,
               {.out = b.sampled,
                .logprobs = b.first_logprobs,
                .logits = logits,
                .index = b.module.index(count),
                .ids = b.module.ids,
                .slots = slots.arrays(),
                .scratch = b.sample_scratch.data});
  ops.accept_first_token(stream, {.outputs = b.first_outputs,
                                  .tokens = b.sampled,
                                  .slot_ids = b.ended_slots,
                                  .slots = slots.arrays(),
                                  .count = count});
}

}  // namespace foredraft
