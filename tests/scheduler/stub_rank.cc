#include "tests/scheduler/stub_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft {

uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

absl::Status StubRank::Launch(const IterationPlan& plan) {
  const RankPlan& rank = plan.ranks[rank_];
  MoveSlots(rank);
  std::vector<bool> prompt_ended(slots_.size());
  for (const PrefillChunk& chunk : rank.prefill_chunks) {
    if (chunk.last) prompt_ended[chunk.slot] = true;
  }
  RankResult result{.number = plan.number, .decode_seconds = decode_seconds_};
  result.slots.reserve(rank.live_slots.size());
  for (const int32_t slot : rank.live_slots) result.slots.push_back(Step(slot, prompt_ended[slot], plan));
  results_.push_back(std::move(result));
  return absl::OkStatus();
}

absl::StatusOr<RankResult> StubRank::Collect() {
  RankResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

void StubRank::MoveSlots(const RankPlan& plan) {
  for (const int32_t slot : plan.releases) slots_[slot] = {};
  for (const uint64_t image : plan.dropped_images) images_.erase(image);
  for (const SwapOut& swap : plan.swaps_out) images_[swap.image_id] = std::exchange(slots_[swap.slot], {});
  for (const SwapIn& swap : plan.swaps_in) {
    slots_[swap.slot] = std::move(images_[swap.image_id]);
    images_.erase(swap.image_id);
  }
  for (const SlotAdmission& admission : plan.admissions) {
    slots_[admission.slot] = {.active = true, .admission = admission};
  }
}

void StubRank::Emit(Slot* slot, SlotResult* result, int32_t token) {
  const SlotAdmission& admission = slot->admission;
  ++slot->length;
  const std::vector<int32_t>& stops = admission.stop_ids;
  slot->finished =
      slot->length >= admission.length_limit || std::find(stops.begin(), stops.end(), token) != stops.end();
  const bool is_first = slot->length == admission.prompt_len;
  if (admission.gate.constrained) {
    slot->gate = GateAfter(admission.gate.tokens(admission.thinking), slot->gate, token, is_first);
  }
  result->token_ids.push_back(token);
  TokenEmitted(*slot, result);
}

void StubRank::CheckMask(const Slot& slot, const RankPlan& plan, int32_t mask_index, int32_t token) {
  if (!slot.admission.gate.constrained || slot.gate != Gate::kBehind) return;
  if (mask_index < 0 || mask_index >= static_cast<int>(plan.masks.size())) {
    return MaskFault(absl::StrCat("position ", slot.length + 1, " is chosen without a mask"));
  }
  if (!plan.masks[mask_index]->Allows(token)) {
    MaskFault(absl::StrCat("token ", token, " at ", slot.length + 1, " is not in its mask"));
  }
}

int32_t StubRank::Chosen(const Slot& slot, const RankPlan& plan, int32_t mask_index, int32_t token) {
  if (mask_index >= 0) token = Masked(token, *plan.masks.at(mask_index));
  CheckMask(slot, plan, mask_index, token);
  return token;
}

int32_t StubRank::DraftAt(const Slot& slot, int position) {
  const int32_t token = TokenAt(slot.admission, position);
  return Mix(slot.admission.sampling.seed, 7 * position) % 4 == 0 ? (token + 1) % 40 : token;
}

std::vector<int32_t> StubRank::Drafts(const Slot& slot, const RankPlan& plan, const SlotMasks* masks) {
  std::vector<int32_t> drafts;
  for (int k = 1; k <= slot.draft_count; ++k) drafts.push_back(DraftAt(slot, slot.length + k));
  if (masks == nullptr || masks->forced_drafts.empty()) return drafts;
  const size_t first = masks->mask_indices.size() - 1 - masks->forced_drafts.size();
  if (first > drafts.size()) MaskFault("drafts are forced behind ones that there are not");
  drafts.resize(first);
  for (const int32_t id : masks->forced_drafts) {
    if (!plan.masks[masks->mask_indices[drafts.size()]]->Allows(id)) MaskFault("a forced draft is refused");
    drafts.push_back(id);
  }
  return drafts;
}

SlotResult StubRank::Step(int slot_index, bool first_token, const IterationPlan& plan) {
  Slot& slot = slots_[slot_index];
  SlotResult result{.slot = slot_index, .first_token = first_token};
  if (first_token) {
    slot.length = slot.admission.prompt_len - 1;
    slot.gate = slot.admission.gate.first;
    const int32_t token = TokenAt(slot.admission, slot.length + 1);
    int32_t mask_index = -1;
    for (const FirstMask& mask : plan.ranks[rank_].first_masks) {
      if (mask.slot == slot_index) mask_index = mask.mask_index;
    }
    Emit(&slot, &result, Chosen(slot, plan.ranks[rank_], mask_index, token));
    slot.draft_count = std::min(1, max_draft_len_);
    PromptEnded(slot_index, result.token_ids.front());
  }
  if (!slot.finished) StepSlot(slot_index, plan, &result);
  result.length = slot.length;
  result.finished = slot.finished;
  for (int k = 1; slot.admission.gate.constrained && !slot.finished && k <= slot.draft_count; ++k) {
    result.drafts.push_back(DraftAt(slot, slot.length + k));
  }
  return result;
}

void StubRank::StepSlot(int slot_index, const IterationPlan& plan, SlotResult* result) {
  Slot& slot = slots_[slot_index];
  const RankPlan& rank = plan.ranks[rank_];
  const auto own = std::find_if(rank.given_tokens.begin(), rank.given_tokens.end(),
                                [&](const GivenTokens& tokens) { return tokens.slot == slot_index; });
  const auto masks = std::find_if(rank.slot_masks.begin(), rank.slot_masks.end(),
                                  [&](const SlotMasks& of) { return of.slot == slot_index; });
  const bool given = own != rank.given_tokens.end();
  const bool has_entry = masks != rank.slot_masks.end();
  const int mask_count = has_entry ? static_cast<int>(masks->mask_indices.size()) : 0;
  if (slot.admission.gate.constrained && !given && mask_count == 0) {
    if (has_entry || slot.gate == Gate::kBehind) return;  // held
  }
  StepBegins(slot_index);
  const int first_position = slot.length;
  if (given) {
    Given(slot_index, own->token_ids);
    for (const int32_t token : own->token_ids) Emit(&slot, result, token);
  } else {
    const std::vector<int32_t> drafts = Drafts(slot, rank, mask_count > 0 ? &*masks : nullptr);
    result->drafts_verified =
        std::min({static_cast<int>(drafts.size()), slot.admission.draft_cap, plan.draft_len});
    if (mask_count > 0) result->drafts_verified = std::min(result->drafts_verified, mask_count - 1);
    int accepted = 0;
    if (slot.admission.gate.constrained) {
      while (accepted < result->drafts_verified &&
             drafts[accepted] == TokenAt(slot.admission, slot.length + accepted + 1))
        ++accepted;
    } else {
      accepted = AcceptedDrafts(slot, result->drafts_verified);
    }
    EmitChosen(slot_index, rank, accepted, result);
  }
  slot.draft_count = plan.draft_len;
  StepEnds(slot_index, first_position, plan, result);
}

// Up to the token that ends the sequence, or takes it behind its gate.
void StubRank::EmitChosen(int slot_index, const RankPlan& plan, int accepted, SlotResult* result) {
  Slot& slot = slots_[slot_index];
  const auto masks = std::find_if(plan.slot_masks.begin(), plan.slot_masks.end(),
                                  [&](const SlotMasks& of) { return of.slot == slot_index; });
  const bool constrained = slot.admission.gate.constrained;
  const bool was_behind = slot.gate == Gate::kBehind;
  for (int i = 0; i <= accepted && !slot.finished; ++i) {
    const int32_t token = TokenAt(slot.admission, slot.length + 1);
    const bool has_mask = masks != plan.slot_masks.end() && i < static_cast<int>(masks->mask_indices.size());
    Emit(&slot, result, Chosen(slot, plan, has_mask ? masks->mask_indices[i] : -1, token));
    result->ends_in_draft = i < accepted;  // unless more follows
    if (constrained && !was_behind && slot.gate == Gate::kBehind) return;
  }
}

}  // namespace foredraft
