#include "ranks/mask_check.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "kernels/slot_arrays.h"
#include "ranks/range_check.h"
#include "scheduler/request_constraint.h"

namespace foredraft {
namespace {

static_assert(kMaxTriggerIds == kMaxGateTriggers);

absl::Status CheckMask(const TokenMask& mask, int32_t vocab_size) {
  RETURN_IF_ERROR(CheckRange("masks.vocab_size", mask.vocab_size, 1, vocab_size));
  if (!mask.words.empty()) {
    RETURN_IF_ERROR(CheckEqual("masks.words size", mask.words.size(), (mask.vocab_size + 31) / 32));
    return CheckEqual("masks.ids size", mask.ids.size(), 0);
  }
  int32_t lowest = 0;  // ids ascend
  for (const int32_t id : mask.ids) {
    RETURN_IF_ERROR(CheckRange("masks.ids", id, lowest, mask.vocab_size - 1));
    lowest = id + 1;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckMasks(const RankPlan& plan, const MaskLimits& limits,
                        const std::function<const SlotGate&(int32_t slot)>& gate_of) {
  const int64_t count = plan.masks.size();
  RETURN_IF_ERROR(CheckRange("masks size", count, 0, limits.most_masks));
  for (const auto& mask : plan.masks) RETURN_IF_ERROR(CheckMask(*mask, limits.vocab_size));
  std::set<int32_t> live(plan.live_slots.begin(), plan.live_slots.end());
  for (const SlotMasks& masks : plan.slot_masks) {
    if (live.erase(masks.slot) == 0 || !gate_of(masks.slot).constrained)
      return RefuseField("slot_masks.slot", masks.slot, "constrained live slots, each once");
    const int64_t rows = masks.mask_indices.size();
    RETURN_IF_ERROR(CheckRange("slot_masks.mask_indices size", rows, 0, limits.draft_len + 1));
    for (const int32_t index : masks.mask_indices)
      RETURN_IF_ERROR(CheckRange("slot_masks.mask_indices", index, 0, count - 1));
    const int64_t most_forced = std::clamp<int64_t>(rows - 1, 0, limits.most_forced_drafts);
    RETURN_IF_ERROR(CheckRange("slot_masks.forced_drafts size", masks.forced_drafts.size(), 0, most_forced));
    for (const int32_t id : masks.forced_drafts)
      RETURN_IF_ERROR(CheckRange("slot_masks.forced_drafts", id, 0, limits.vocab_size - 1));
  }
  std::set<int32_t> ended;
  for (const PrefillChunk& chunk : plan.prefill_chunks) {
    if (chunk.last && gate_of(chunk.slot).constrained) ended.insert(chunk.slot);
  }
  for (const FirstMask& mask : plan.first_masks) {
    if (ended.erase(mask.slot) == 0)
      return RefuseField("first_masks.slot", mask.slot, "constrained slots whose prompt ends, each once");
    RETURN_IF_ERROR(CheckRange("first_masks.mask_index", mask.mask_index, 0, count - 1));
  }
  for (const int32_t slot : ended) {
    if (gate_of(slot).first == Gate::kBehind)
      return RefuseField("first_masks size", plan.first_masks.size(),
                         absl::StrCat("one for slot ", slot, ", which is behind its gate"));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
