#include "engine/decode_step.h"

#include "engine/verifier.h"

namespace foredraft {
std::vector<StepKey> StepsOf(const std::vector<int>& batch_sizes, int max_draft_len, bool cuts) {
  std::vector<StepKey> steps;
  for (const int bucket : batch_sizes) {
    for (int draft_len = 0; draft_len <= max_draft_len; ++draft_len) {
      for (const SamplingMode sampling_mode : {SamplingMode::kSample, SamplingMode::kArgmax}) {
        for (int verified = 1; cuts && verified < draft_len; ++verified) {
          steps.push_back({.bucket = bucket,
                           .draft_len = draft_len,
                           .verify_rows = bucket * (verified + 1),
                           .sampling_mode = sampling_mode});
        }
        steps.push_back({.bucket = bucket, .draft_len = draft_len, .sampling_mode = sampling_mode});
      }
    }
  }
  return steps;
}

void DecodeStep(const Rank& rank, const StepKey& key) {
  const StepBuffers& b = rank.buffers;
  const int rows = key.rows();
  const Matrix<float> target_output = b.target_output.first_rows(rows);
  DecodeRowsParams decode_rows{.ids = b.target.ids,
                               .row_slots = b.target.slots,
                               .positions = b.target.positions,
                               .row_in_slot = b.row_in_slot,
                               .live_slots = rank.parts.slots.live(),
                               .slots = rank.slots.arrays(),
                               .bucket = key.bucket,
                               .draft_len = key.draft_len,
                               .first_rows = nullptr};
  for (const StepPart* part : rank.parts.list) {
    part->BeforeRows(rank.ops(), *rank.stream, key.verify_rows, decode_rows);
  }
  rank.ops().decode_rows(*rank.stream, decode_rows);
  rank.model->RunTarget(*rank.stream, {.index = b.target.index(rows), .ids = b.target.ids}, rank.cache,
                        target_output);
  Verify(rank, key);
  if (rank.drafter == nullptr) return;
  rank.drafter->Draft(rank.step(),
                      {.outputs = b.outputs,
                       .target_output = target_output,
                       .bucket = key.bucket,
                       .draft_len = key.draft_len,
                       .sampling_mode = key.sampling_mode},
                      key.draft_len);
}

}  // namespace foredraft
