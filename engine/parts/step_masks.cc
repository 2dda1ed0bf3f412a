#include "engine/parts/step_masks.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"
#include "config/draft_calibration.h"

namespace foredraft {
namespace {

// `words`: [MaskWordCount(token_count)]. The mask's vocabulary may be shorter or longer; bits from
// token_count on are left out.
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

absl::Status StepMasks::Allocate(Device& device, const StepPartShape& shape, SlotState& slots) {
  device_ = &device;
  shape_ = shape;
  const size_t most = shape.step_rows + shape.bucket;
  ASSIGN_OR_RETURN(words_, device.AllocateArray<uint32_t>(most * MaskWordCount(shape.token_count)));
  ASSIGN_OR_RETURN(by_slot_, device.AllocateArray<SlotStepMasks>(shape.slot_count));
  ASSIGN_OR_RETURN(row_masks_, device.AllocateArray<int32_t>(shape.step_rows));
  ASSIGN_OR_RETURN(first_masks_, device.AllocateArray<int32_t>(shape.bucket));
  if (!shape.missing_tokens.empty()) {
    ASSIGN_OR_RETURN(present_, device.AllocateArray<uint32_t>(MaskWordCount(shape.token_count)));
  }
  slots.SetStepMasks(by_slot_);
  host_by_slot_.assign(shape.slot_count, {});
  return absl::OkStatus();
}

void StepMasks::BeforePrefill(const SubmittedPlan& submitted) {
  const RankPlan& plan = submitted.rank;
  Stream& stream = submitted.stream;
  if (!std::exchange(is_set_, true)) {
    // A step that cuts drafts does not write all of row_masks_, so it is set once here.
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
    submitted.Write(words_, host_words_.data(), host_words_.size());
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
  submitted.Write(by_slot_, host_by_slot_.data(), host_by_slot_.size());
}

void StepMasks::BeforeDecode(const SubmittedPlan& submitted) {
  for (const SlotMasks& masks : submitted.rank.slot_masks) ForceDrafts(submitted, masks);
}

void StepMasks::ForceDrafts(const SubmittedPlan& submitted, const SlotMasks& masks) const {
  const std::vector<int32_t>& ids = masks.forced_drafts;
  if (ids.empty()) return;
  CHECK_LT(ids.size(), masks.mask_indices.size()) << "slot " << masks.slot;
  const int32_t draft_count = static_cast<int32_t>(masks.mask_indices.size()) - 1;
  CHECK_LE(draft_count, kMaxDraftLen) << "slot " << masks.slot;
  const int32_t first = draft_count - static_cast<int32_t>(ids.size());
  // The drafter gives no confidences for forced drafts; the grammar is certain of them.
  const std::vector<float> confidences(ids.size(), kLargestConfidence);
  SlotDrafts& drafts = submitted.slots.arrays().drafts[masks.slot];
  submitted.Write(&drafts.draft_count, &draft_count, 1);
  submitted.Write(drafts.tokens + first, ids.data(), ids.size());
  submitted.Write(drafts.confidences + first, confidences.data(), ids.size());
}

void StepMasks::BeforeRows(const Ops&, Stream&, int, DecodeRowsParams& rows) const {
  rows.row_masks = row_masks_;
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
