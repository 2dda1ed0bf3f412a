#include "engine/step_masks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

// `words`: [MaskWordCount(token_count)]. The mask's vocabulary may be shorter or longer; what it allows from
// token_count on is left out.
void WriteWords(const TokenMask& mask, uint32_t* words, int32_t token_count) {
  const auto word_count = static_cast<size_t>(MaskWordCount(token_count));
  const auto end = mask.words.begin() + std::min(mask.words.size(), word_count);
  std::fill(std::copy(mask.words.begin(), end, words), words + word_count, 0u);
  for (const int32_t id : mask.ids) {
    CHECK_GE(id, 0) << "a mask allows token " << id;
    if (id < token_count) words[id / 32] |= 1u << (id % 32);
  }
}

}  // namespace

absl::StatusOr<StepMasks> StepMasks::Create(Device& device, const StepMasksShape& shape) {
  StepMasks masks;
  masks.device_ = &device;
  masks.shape_ = shape;
  const size_t most = shape.step_rows + shape.bucket;
  ASSIGN_OR_RETURN(masks.words_, device.AllocateArray<uint32_t>(most * MaskWordCount(shape.token_count)));
  ASSIGN_OR_RETURN(masks.by_slot_, device.AllocateArray<SlotStepMasks>(shape.slot_count));
  ASSIGN_OR_RETURN(masks.row_masks_, device.AllocateArray<int32_t>(shape.step_rows));
  ASSIGN_OR_RETURN(masks.first_masks_, device.AllocateArray<int32_t>(shape.bucket));
  if (!shape.missing_tokens.empty()) {
    ASSIGN_OR_RETURN(masks.present_, device.AllocateArray<uint32_t>(MaskWordCount(shape.token_count)));
  }
  masks.host_by_slot_.assign(shape.slot_count, {});
  return masks;
}

void StepMasks::Set(Stream& stream, const RankPlan& plan) {
  if (!std::exchange(is_set_, true)) {
    // A step that cuts drafts leaves some rows as they are.
    const std::vector<int32_t> none(shape_.step_rows, -1);
    device_->CopyToDevice(stream, row_masks_, none.data(), none.size() * sizeof(int32_t));
    SetPresent(stream);
  }
  if (!plan.masks.empty()) {
    const int32_t word_count = MaskWordCount(shape_.token_count);
    CHECK_LE(plan.masks.size(), static_cast<size_t>(shape_.step_rows + shape_.bucket));
    host_words_.resize(plan.masks.size() * word_count);
    for (size_t i = 0; i < plan.masks.size(); ++i) {
      WriteWords(*plan.masks[i], host_words_.data() + i * word_count, shape_.token_count);
    }
    device_->CopyToDevice(stream, words_, host_words_.data(), host_words_.size() * sizeof(uint32_t));
  }
  if (plan.slot_masks.empty() && is_clear_) return;
  std::fill(host_by_slot_.begin(), host_by_slot_.end(), SlotStepMasks{});
  for (const SlotMasks& slot : plan.slot_masks) {
    SlotStepMasks& masks = host_by_slot_[slot.slot];
    CHECK_LE(slot.mask_indices.size(), static_cast<size_t>(kMaxDraftLen + 1)) << "slot " << slot.slot;
    masks.count = slot.mask_indices.empty() ? -1 : static_cast<int32_t>(slot.mask_indices.size());
    std::copy(slot.mask_indices.begin(), slot.mask_indices.end(), masks.mask_indices);
  }
  is_clear_ = plan.slot_masks.empty();
  device_->CopyToDevice(stream, by_slot_, host_by_slot_.data(), host_by_slot_.size() * sizeof(SlotStepMasks));
}

void StepMasks::SetPresent(Stream& stream) {
  if (present_ == nullptr) return;
  std::vector<uint32_t> words(MaskWordCount(shape_.token_count), ~0u);
  for (const int32_t id : shape_.missing_tokens) words[id / 32] &= ~(1u << (id % 32));
  device_->CopyToDevice(stream, present_, words.data(), words.size() * sizeof(uint32_t));
}

RowMasks StepMasks::SetFirst(Stream& stream, const RankPlan& plan, const std::vector<int32_t>& slots) {
  if (plan.first_masks.empty()) return of_unconstrained();
  std::vector<int32_t> indices;
  for (const int32_t slot : slots) {
    const auto found = std::find_if(plan.first_masks.begin(), plan.first_masks.end(),
                                    [&](const FirstMask& mask) { return mask.slot == slot; });
    indices.push_back(found == plan.first_masks.end() ? -1 : found->mask_index);
  }
  device_->CopyToDevice(stream, first_masks_, indices.data(), indices.size() * sizeof(int32_t));
  return {.words = words_, .of_row = first_masks_, .of_others = present_};
}

}  // namespace foredraft
