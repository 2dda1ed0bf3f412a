#include "engine/slot_state.h"

#include <algorithm>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

SlotConstants ConstantsOf(const SlotAdmission& admission) {
  CHECK_LE(admission.stop_ids.size(), static_cast<size_t>(kMaxStopIds)) << "slot " << admission.slot;
  const SamplingParams& sampling = admission.sampling;
  SlotConstants constants{.seed = sampling.seed,
                          .temperature = sampling.temperature,
                          .top_p = sampling.top_p,
                          .min_p = sampling.min_p,
                          .repetition_penalty = sampling.repetition_penalty,
                          .presence_penalty = sampling.presence_penalty,
                          .frequency_penalty = sampling.frequency_penalty,
                          .top_k = sampling.top_k,
                          .logprob_count = admission.logprob_count,
                          .draft_cap = admission.draft_cap,
                          .strict = admission.strict ? 1 : 0,
                          .prompt_len = admission.prompt_len,
                          .length_limit = admission.length_limit,
                          .stop_id_count = static_cast<int32_t>(admission.stop_ids.size()),
                          .stop_ids = {}};
  std::copy(admission.stop_ids.begin(), admission.stop_ids.end(), constants.stop_ids);
  return constants;
}

}  // namespace

absl::StatusOr<SlotState> SlotState::Create(Device& device, const SlotStateShape& shape) {
  SlotState state;
  state.device_ = &device;
  state.shape_ = shape;
  const size_t slots = shape.slot_count;
  const size_t table_entries = slots * shape.table_stride;
  state.arrays_.vocab_size = shape.vocab_size;
  ASSIGN_OR_RETURN(state.rule_, device.AllocateArray<AcceptanceRule>(1));
  state.arrays_.rule = state.rule_;
  ASSIGN_OR_RETURN(state.arrays_.constants, device.AllocateArray<SlotConstants>(slots));
  ASSIGN_OR_RETURN(state.arrays_.progress, device.AllocateArray<SlotProgress>(slots));
  ASSIGN_OR_RETURN(state.arrays_.drafts, device.AllocateArray<SlotDrafts>(slots));
  ASSIGN_OR_RETURN(state.arrays_.output_counts, device.AllocateArray<int32_t>(slots * shape.vocab_size));
  ASSIGN_OR_RETURN(state.arrays_.prompt_seen, device.AllocateArray<uint8_t>(slots * shape.vocab_size));
  ASSIGN_OR_RETURN(state.block_tables_, device.AllocateArray<int32_t>(table_entries));
  const int boundary_width = shape.level_count * shape.hidden_size;
  ASSIGN_OR_RETURN(float* const boundaries, device.AllocateArray<float>(slots * boundary_width));
  state.boundaries_ = Dense(boundaries, shape.slot_count, boundary_width);
  const int recent_rows = shape.slot_count * shape.recent_len;
  ASSIGN_OR_RETURN(state.recent_ids_, device.AllocateArray<int32_t>(recent_rows));
  ASSIGN_OR_RETURN(float* const hiddens,
                   device.AllocateArray<float>(size_t(recent_rows) * shape.hidden_size));
  state.recent_hiddens_ = Dense(hiddens, recent_rows, shape.hidden_size);
  state.host_tables_.assign(table_entries, kScratchBlock);
  state.counts_tokens_.assign(slots, false);
  state.wants_logprobs_.assign(slots, false);
  state.zero_counts_.assign(shape.vocab_size, 0);
  state.prompt_seen_.assign(shape.vocab_size, 0);
  return state;
}

void SlotState::SetRule(Stream& stream, const AcceptanceRule& rule) { Write(stream, rule_, rule); }

void SlotState::Admit(Stream& stream, const SlotAdmission& admission) {
  const int slot = admission.slot;
  Write(stream, arrays_.constants + slot, ConstantsOf(admission));
  Write(stream, arrays_.progress + slot,
        SlotProgress{.length = admission.reused_len,
                     .last_token = 0,
                     .finished = 0,
                     .active = 0,
                     .thinking = admission.phase == Phase::kThinking ? 1 : 0});
  Write(stream, arrays_.drafts + slot, SlotDrafts{});
  wants_logprobs_[slot] = admission.logprob_count >= 0;
  counts_tokens_[slot] = admission.sampling.counts_tokens();
  if (!counts_tokens_[slot]) return;
  const size_t vocab = zero_counts_.size();
  device_->CopyToDevice(stream, arrays_.output_counts + slot * vocab, zero_counts_.data(),
                        vocab * sizeof(int32_t));
  device_->CopyToDevice(stream, arrays_.prompt_seen + slot * vocab, zero_counts_.data(), vocab);
  CountPrompt(stream, slot, admission.reused_ids);
}

void SlotState::CountPrompt(Stream& stream, int slot, std::span<const int32_t> ids) {
  if (!counts_tokens_[slot] || ids.empty()) return;
  uint8_t* const row = arrays_.prompt_seen + slot * prompt_seen_.size();
  device_->CopyToHost(stream, prompt_seen_.data(), row, prompt_seen_.size());
  stream.Synchronize();
  for (const int32_t id : ids) prompt_seen_[id] = 1;
  device_->CopyToDevice(stream, row, prompt_seen_.data(), prompt_seen_.size());
}

void SlotState::ApplyDelta(Stream& stream, const BlockTableDelta& delta) {
  CHECK_LE(delta.first_index + static_cast<int>(delta.block_ids.size()), shape_.table_stride)
      << "slot " << delta.slot;
  const size_t first = size_t(delta.slot) * shape_.table_stride + delta.first_index;
  std::copy(delta.block_ids.begin(), delta.block_ids.end(), host_tables_.begin() + first);
  device_->CopyToDevice(stream, block_tables_ + first, delta.block_ids.data(),
                        delta.block_ids.size() * sizeof(int32_t));
}

void SlotState::Release(Stream& stream, int slot) {
  Write(stream, arrays_.progress + slot,
        SlotProgress{.length = 0, .last_token = 0, .finished = 1, .active = 0, .thinking = 0});
  const size_t first = size_t(slot) * shape_.table_stride;
  std::fill_n(host_tables_.begin() + first, shape_.table_stride, kScratchBlock);
  device_->CopyToDevice(stream, block_tables_ + first, host_tables_.data() + first,
                        shape_.table_stride * sizeof(int32_t));
}

void SlotState::SwapOut(Stream& stream, int slot, SlotImage& image) {
  const size_t vocab = zero_counts_.size();
  device_->CopyToHost(stream, &image.constants, arrays_.constants + slot, sizeof(SlotConstants));
  device_->CopyToHost(stream, &image.progress, arrays_.progress + slot, sizeof(SlotProgress));
  device_->CopyToHost(stream, &image.drafts, arrays_.drafts + slot, sizeof(SlotDrafts));
  image.counts_tokens = counts_tokens_[slot];
  if (image.counts_tokens) {
    image.output_counts.resize(vocab);
    image.prompt_seen.resize(vocab);
    device_->CopyToHost(stream, image.output_counts.data(), arrays_.output_counts + slot * vocab,
                        vocab * sizeof(int32_t));
    device_->CopyToHost(stream, image.prompt_seen.data(), arrays_.prompt_seen + slot * vocab, vocab);
  }
  if (boundaries_) {
    image.boundary.resize(boundaries_.cols);
    device_->CopyToHost(stream, image.boundary.data(), boundaries_.row(slot),
                        boundaries_.cols * sizeof(float));
  }
}

void SlotState::SwapIn(Stream& stream, int slot, const SlotImage& image) {
  const size_t vocab = zero_counts_.size();
  Write(stream, arrays_.constants + slot, image.constants);
  Write(stream, arrays_.progress + slot, image.progress);
  Write(stream, arrays_.drafts + slot, image.drafts);
  wants_logprobs_[slot] = image.constants.logprob_count >= 0;
  counts_tokens_[slot] = image.counts_tokens;
  if (image.counts_tokens) {
    device_->CopyToDevice(stream, arrays_.output_counts + slot * vocab, image.output_counts.data(),
                          vocab * sizeof(int32_t));
    device_->CopyToDevice(stream, arrays_.prompt_seen + slot * vocab, image.prompt_seen.data(), vocab);
  }
  if (boundaries_) {
    device_->CopyToDevice(stream, boundaries_.row(slot), image.boundary.data(),
                          boundaries_.cols * sizeof(float));
  }
}

}  // namespace foredraft
