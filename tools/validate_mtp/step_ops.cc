#include "tools/validate_mtp/step_ops.h"

#include <numeric>

#include "base/status_macros.h"

namespace foredraft {

absl::StatusOr<StepOps> StepOps::Create(Device& device, Stream& stream, int count, int vocab_size,
                                        int positions) {
  StepOps step(device, stream, count);
  const size_t rows = static_cast<size_t>(count) * (kMaxDraftLen + 1);
  ASSIGN_OR_RETURN(AcceptanceRule* const rule, device.AllocateArray<AcceptanceRule>(1));
  ASSIGN_OR_RETURN(step.slots_.constants, device.AllocateArray<SlotConstants>(count));
  ASSIGN_OR_RETURN(step.slots_.progress, device.AllocateArray<SlotProgress>(count));
  ASSIGN_OR_RETURN(step.slots_.drafts, device.AllocateArray<SlotDrafts>(count));
  ASSIGN_OR_RETURN(step.slots_.output_counts,
                   device.AllocateArray<int32_t>(static_cast<size_t>(count) * vocab_size));
  ASSIGN_OR_RETURN(step.slots_.prompt_seen,
                   device.AllocateArray<uint8_t>(static_cast<size_t>(count) * vocab_size));
  ASSIGN_OR_RETURN(step.outputs_, device.AllocateArray<StepOutput>(count));
  for (int32_t** const array : {&step.live_, &step.tokens_, &step.relaxed_, &step.ids_, &step.row_slots_,
                                &step.positions_, &step.row_in_slot_, &step.last_row_}) {
    ASSIGN_OR_RETURN(*array, device.AllocateArray<int32_t>(rows));
  }
  step.slots_.rule = rule;
  step.slots_.vocab_size = vocab_size;
  step.Put(rule, std::vector<AcceptanceRule>(1));
  SlotConstants constants = {};  // greedy, without penalties and stop ids
  constants.top_p = 1;
  constants.repetition_penalty = 1;
  constants.logprob_count = -1;
  constants.draft_cap = kMaxDraftLen;
  constants.thinking.begin = constants.thinking.end = -1;
  constants.length_limit = positions;
  step.Put(step.slots_.constants, std::vector<SlotConstants>(count, constants));
  std::vector<int32_t> live(count);
  std::iota(live.begin(), live.end(), 0);
  step.Put(step.live_, live);
  return step;
}

template <class T>
std::vector<T> StepOps::Get(const T* from, size_t count) {
  std::vector<T> values(count);
  device_->CopyToHost(*stream_, values.data(), from, count * sizeof(T));
  stream_->Synchronize();
  return values;
}

template <class T>
void StepOps::Put(T* to, const std::vector<T>& from) {
  device_->CopyToDevice(*stream_, to, from.data(), from.size() * sizeof(T));
}

StepRows StepOps::GetRows(int count) {
  return {.ids = Get(ids_, count),
          .slots = Get(row_slots_, count),
          .positions = Get(positions_, count),
          .last_row = {}};
}

void StepOps::Begin(const std::vector<int>& lengths, const std::vector<int>& last_tokens) {
  std::vector<SlotProgress> progress;
  for (int i = 0; i < count_; ++i) {
    progress.push_back({.length = lengths[i], .last_token = last_tokens[i], .finished = 0, .active = 1});
  }
  Put(slots_.progress, progress);
  Put(slots_.drafts, std::vector<SlotDrafts>(count_));
}

void StepOps::SetDrafts(const std::vector<int32_t>& drafts, int draft_len) {
  std::vector<SlotDrafts> stored(count_);
  for (int i = 0; i < count_; ++i) {
    stored[i].draft_count = draft_len;
    std::copy_n(drafts.begin() + i * draft_len, draft_len, stored[i].tokens);
  }
  Put(slots_.drafts, stored);
}

std::vector<int32_t> StepOps::Drafts(int draft_len) {
  std::vector<int32_t> drafts;
  for (const SlotDrafts& stored : Get(slots_.drafts, count_)) {
    drafts.insert(drafts.end(), stored.tokens, stored.tokens + draft_len);
  }
  return drafts;
}

StepRows StepOps::DecodeRows(int draft_len) {
  device_->ops().decode_rows(*stream_, {.ids = ids_,
                                        .row_slots = row_slots_,
                                        .positions = positions_,
                                        .row_in_slot = row_in_slot_,
                                        .live_slots = live_,
                                        .slots = slots_,
                                        .bucket = count_,
                                        .draft_len = draft_len});
  return GetRows(count_ * (draft_len + 1));
}

std::vector<StepOutput> StepOps::VerifyDrafts(const std::vector<int32_t>& target_ids, int draft_len) {
  Put(tokens_, target_ids);
  Put(relaxed_, std::vector<int32_t>(target_ids.size()));
  device_->ops().verify_drafts(*stream_, {.outputs = outputs_,
                                          .target_ids = tokens_,
                                          .relaxed = relaxed_,
                                          .live_slots = live_,
                                          .slots = slots_,
                                          .bucket = count_,
                                          .draft_len = draft_len});
  return Get(outputs_, count_);
}

StepRows StepOps::EmittedRows(int draft_len) {
  device_->ops().emitted_rows(*stream_, {.ids = ids_,
                                         .row_slots = row_slots_,
                                         .positions = positions_,
                                         .last_row = last_row_,
                                         .outputs = outputs_,
                                         .bucket = count_,
                                         .draft_len = draft_len,
                                         .level = 1});
  StepRows rows = GetRows(count_ * (draft_len + 1));
  rows.last_row = Get(last_row_, count_);
  return rows;
}

StepRows StepOps::NextDraftRows(const std::vector<int32_t>& draft_ids, int draft_index) {
  Put(tokens_, draft_ids);
  device_->ops().next_draft_rows(*stream_, {.ids = ids_,
                                            .row_slots = row_slots_,
                                            .positions = positions_,
                                            .draft_ids = tokens_,
                                            .outputs = outputs_,
                                            .bucket = count_,
                                            .draft_index = draft_index});
  return GetRows(count_);
}

StepRows StepOps::DraftBlockRows(int block_rows, int noise_id) {
  device_->ops().draft_block_rows(*stream_, {.ids = ids_,
                                             .row_slots = row_slots_,
                                             .positions = positions_,
                                             .anchor_ids = tokens_,
                                             .outputs = outputs_,
                                             .bucket = count_,
                                             .block_rows = block_rows,
                                             .noise_id = noise_id});
  return GetRows(count_ * block_rows);
}

void StepOps::StoreDrafts(const std::vector<int32_t>& draft_ids, int draft_index) {
  Put(tokens_, draft_ids);
  device_->ops().store_drafts(*stream_, {.draft_ids = tokens_,
                                         .outputs = outputs_,
                                         .slots = slots_,
                                         .bucket = count_,
                                         .draft_index = draft_index});
}

}  // namespace foredraft
