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
                          .prompt_len = admission.prompt_len,
                          .length_limit = admission.length_limit,
                          .stop_id_count = static_cast<int32_t>(admission.stop_ids.size()),
                          .stop_ids = {}};
  std::copy(admission.stop_ids.begin(), admission.stop_ids.end(), constants.stop_ids);
  return constants;
}

}  // namespace

absl::StatusOr<SlotState> SlotState::Create(Device& device, int slot_count, int vocab_size, int table_stride,
                                            int boundary_width) {
  SlotState state;
  state.device_ = &device;
  state.table_stride_ = table_stride;
  const size_t vocab_rows = size_t(slot_count) * vocab_size;
  state.arrays_.vocab_size = vocab_size;
  ASSIGN_OR_RETURN(state.arrays_.constants, device.AllocateArray<SlotConstants>(slot_count));
  ASSIGN_OR_RETURN(state.arrays_.progress, device.AllocateArray<SlotProgress>(slot_count));
  ASSIGN_OR_RETURN(state.arrays_.drafts, device.AllocateArray<SlotDrafts>(slot_count));
  ASSIGN_OR_RETURN(state.arrays_.output_counts, device.AllocateArray<int32_t>(vocab_rows));
  ASSIGN_OR_RETURN(state.arrays_.prompt_seen, device.AllocateArray<uint8_t>(vocab_rows));
  ASSIGN_OR_RETURN(state.block_tables_, device.AllocateArray<int32_t>(size_t(slot_count) * table_stride));
  if (boundary_width > 0) {
    ASSIGN_OR_RETURN(float* const memory, device.AllocateArray<float>(size_t(slot_count) * boundary_width));
    state.boundaries_ = Dense(memory, slot_count, boundary_width);
  }
  state.host_tables_.assign(size_t(slot_count) * table_stride, kScratchBlock);
  state.counts_tokens_.assign(slot_count, false);
  state.wants_logprobs_.assign(slot_count, false);
  state.zero_counts_.assign(vocab_size, 0);
  state.prompt_seen_.assign(vocab_size, 0);
  return state;
}

void SlotState::Admit(Stream& stream, const SlotAdmission& admission) {
  const int slot = admission.slot;
  Write(stream, arrays_.constants + slot, ConstantsOf(admission));
  Write(stream, arrays_.progress + slot,
        SlotProgress{.length = admission.reused_len, .last_token = 0, .finished = 0, .active = 0});
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
  CHECK_LE(delta.first_index + static_cast<int>(delta.block_ids.size()), table_stride_)
      << "slot " << delta.slot;
  const size_t first = size_t(delta.slot) * table_stride_ + delta.first_index;
  std::copy(delta.block_ids.begin(), delta.block_ids.end(), host_tables_.begin() + first);
  device_->CopyToDevice(stream, block_tables_ + first, delta.block_ids.data(),
                        delta.block_ids.size() * sizeof(int32_t));
}

void SlotState::Release(Stream& stream, int slot) {
  Write(stream, arrays_.progress + slot,
        SlotProgress{.length = 0, .last_token = 0, .finished = 1, .active = 0});
  const size_t first = size_t(slot) * table_stride_;
  std::fill_n(host_tables_.begin() + first, table_stride_, kScratchBlock);
  device_->CopyToDevice(stream, block_tables_ + first, host_tables_.data() + first,
                        table_stride_ * sizeof(int32_t));
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
