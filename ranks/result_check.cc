#include "ranks/result_check.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/draft_calibration.h"
#include "ranks/range_check.h"

namespace foredraft {
namespace {

constexpr double kLongestStep = 86'400;  // seconds
constexpr int32_t kMostTopLogprobs = 20;

absl::Status CheckSeconds(absl::string_view field, double seconds) {
  if (seconds >= 0 && seconds <= kLongestStep) return absl::OkStatus();
  return RefuseField(field, seconds, absl::StrCat("0..", kLongestStep));
}

absl::Status CheckFinite(absl::string_view field, double value) {
  return std::isfinite(value) ? absl::OkStatus() : RefuseField(field, value, "finite numbers");
}

absl::Status Within(absl::string_view list, int64_t index, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrFormat("%s[%d]%s", list, index, status.message()));
}

bool Contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

// ---- the plans ----

void ResultCheck::Clear() {
  slots_.clear();
  images_.clear();
  expected_.clear();
}

void ResultCheck::Expect(const RankPlan& plan, uint64_t number, int32_t draft_len) {
  MoveSequences(plan);
  Expected expected{.number = number, .draft_len = draft_len, .live = {}};
  for (const int32_t slot : plan.live_slots) {
    const auto found = slots_.find(slot);
    CHECK(found != slots_.end()) << "slot " << slot << " is live without an admission, iteration " << number;
    LiveSlot& live = expected.live.emplace_back(LiveSlot{.slot = slot, .sequence = found->second});
    for (const PrefillChunk& chunk : plan.prefill_chunks)
      live.prompt_ends |= chunk.slot == slot && chunk.last;
    for (const GivenTokens& given : plan.given_tokens) {
      if (given.slot == slot) live.given_tokens = given.token_ids;
    }
    for (const SlotMasks& masks : plan.slot_masks) {
      if (masks.slot == slot) live.mask_count = static_cast<int32_t>(masks.mask_indices.size());
    }
  }
  expected_.push_back(std::move(expected));
}

// In a plan's order (plan-order). A sequence may leave or return in several parts.
void ResultCheck::MoveSequences(const RankPlan& plan) {
  for (const uint64_t image_id : plan.dropped_images) images_.erase(image_id);
  for (const int32_t slot : plan.releases) slots_.erase(slot);
  for (const SwapOut& swap : plan.swaps_out) {
    if (auto moved = slots_.extract(swap.slot)) images_[swap.image_id] = std::move(moved.mapped());
  }
  for (const SwapIn& swap : plan.swaps_in) {
    if (auto moved = images_.extract(swap.image_id)) slots_[swap.slot] = std::move(moved.mapped());
  }
  for (const SlotAdmission& admission : plan.admissions) {
    slots_[admission.slot] =
        std::make_shared<Sequence>(Sequence{.admission = admission, .gate = admission.gate.first});
  }
}

// ---- the results ----

absl::Status ResultCheck::Check(const worker::v1::WorkerResult& result) {
  if (expected_.empty()) return RefuseField("result.number", result.number(), "no result: no plan is open");
  const Expected& expected = expected_.front();
  if (result.number() != expected.number) {
    return RefuseField("result.number", result.number(), absl::StrCat(expected.number));
  }
  RETURN_IF_ERROR(CheckSeconds("result.prefill_seconds", result.prefill_seconds()));
  RETURN_IF_ERROR(CheckSeconds("result.decode_seconds", result.decode_seconds()));
  const int slot_count = static_cast<int>(expected.live.size());
  RETURN_IF_ERROR(CheckEqual("result.slots size", result.slots_size(), slot_count));
  for (int i = 0; i < slot_count; ++i) {
    RETURN_IF_ERROR(
        Within("result.slots", i, CheckSlot(result.slots(i), expected.live[i], expected.draft_len)));
  }
  for (int i = 0; i < slot_count; ++i) {
    const worker::v1::ResultSlot& slot = result.slots(i);
    Sequence& sequence = *expected.live[i].sequence;
    sequence.length = slot.length();
    sequence.finished = slot.finished();
    for (int j = 0; sequence.admission.gate.constrained && j < slot.token_ids_size(); ++j) {
      sequence.gate = sequence.admission.gate.After(
          sequence.gate, slot.token_ids(j), j == 0 && slot.first_token(), sequence.admission.thinking);
    }
  }
  expected_.pop_front();
  return absl::OkStatus();
}

bool ResultCheck::LiveSlot::is_held(const worker::v1::ResultSlot& slot) const {
  const SlotAdmission& admission = sequence->admission;
  if (!admission.gate.constrained || !given_tokens.empty() || mask_count > 0) return false;
  Gate gate = sequence->gate;
  if (slot.first_token() && slot.token_ids_size() > 0) {
    gate = admission.gate.After(gate, slot.token_ids(0), /*is_first=*/true, admission.thinking);
  }
  return mask_count == 0 || gate == Gate::kBehind;
}

absl::Status ResultCheck::CheckSlot(const worker::v1::ResultSlot& slot, const LiveSlot& live,
                                    int32_t draft_len) const {
  const Sequence& sequence = *live.sequence;
  RETURN_IF_ERROR(CheckEqual(".slot", slot.slot(), live.slot));
  // Without a usable first token there is none.
  const bool first_token = live.prompt_ends && (slot.token_ids_size() > 0 || !slot.nonfinite_logits());
  RETURN_IF_ERROR(CheckEqual(".first_token", slot.first_token(), first_token));
  const int32_t step_tokens = slot.token_ids_size() - (first_token ? 1 : 0);
  RETURN_IF_ERROR(CheckTokens(slot, live, step_tokens));
  const int32_t before = live.prompt_ends ? sequence.admission.prompt_len : sequence.length;
  RETURN_IF_ERROR(CheckEqual(".length", slot.length(), int64_t{before} + step_tokens));
  RETURN_IF_ERROR(CheckEnd(slot, live));
  RETURN_IF_ERROR(CheckGate(slot, live, step_tokens));
  RETURN_IF_ERROR(CheckCounts(slot, live, draft_len, step_tokens));
  RETURN_IF_ERROR(CheckDrafts(slot, live));
  return CheckLogprobs(slot, sequence);
}

absl::Status ResultCheck::CheckTokens(const worker::v1::ResultSlot& slot, const LiveSlot& live,
                                      int32_t step_tokens) const {
  const Sequence& sequence = *live.sequence;
  if (sequence.finished) {
    RETURN_IF_ERROR(CheckEqual(".nonfinite_logits", slot.nonfinite_logits(), 0));
    return CheckEqual(".token_ids size", slot.token_ids_size(), 0);
  }
  for (int i = 0; i < slot.token_ids_size(); ++i) {
    RETURN_IF_ERROR(
        Within(".token_ids", i, CheckRange("", slot.token_ids(i), 0, int64_t{limits_.vocab_size} - 1)));
    if (i + 1 < slot.token_ids_size() && Contains(sequence.admission.stop_ids, slot.token_ids(i))) {
      return Within(".token_ids", i, RefuseField("", slot.token_ids(i), "no stop id before the last token"));
    }
  }
  const int32_t first_of_step = slot.token_ids_size() - step_tokens;
  const int32_t given_count = static_cast<int32_t>(live.given_tokens.size());
  if (given_count == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckRange(".token_ids size", slot.token_ids_size(), 0, first_of_step + given_count));
  for (int32_t i = 0; i < step_tokens; ++i) {
    RETURN_IF_ERROR(Within(".token_ids", first_of_step + i,
                           CheckEqual("", slot.token_ids(first_of_step + i), live.given_tokens[i])));
  }
  return absl::OkStatus();
}

absl::Status ResultCheck::CheckEnd(const worker::v1::ResultSlot& slot, const LiveSlot& live) const {
  const SlotAdmission& admission = live.sequence->admission;
  if (slot.length() > admission.length_limit) {
    return RefuseField(".length", slot.length(), absl::StrCat("0..", admission.length_limit));
  }
  const bool stopped =
      slot.token_ids_size() > 0 && Contains(admission.stop_ids, slot.token_ids(slot.token_ids_size() - 1));
  const bool ends = live.sequence->finished || stopped || slot.length() == admission.length_limit ||
                    slot.nonfinite_logits();
  return CheckEqual(".finished", slot.finished(), ends);
}

absl::Status ResultCheck::CheckCounts(const worker::v1::ResultSlot& slot, const LiveSlot& live,
                                      int32_t draft_len, int32_t step_tokens) const {
  const bool given = !live.given_tokens.empty();
  // A slot that goes on has tokens: one, or all that it was given.
  const bool held = live.is_held(slot);
  const int32_t least = slot.finished() || held ? 0
                        : given                 ? static_cast<int32_t>(live.given_tokens.size())
                                                : 1;
  RETURN_IF_ERROR(CheckRange(".token_ids size of the step", step_tokens, least, held ? 0 : draft_len + 1));
  const int32_t accepted = std::max(0, step_tokens - 1);
  int32_t most_drafts =
      given || held || live.sequence->finished ? 0 : std::min(draft_len, live.sequence->admission.draft_cap);
  if (live.mask_count > 0 && !given) most_drafts = std::min(most_drafts, live.mask_count - 1);
  if (slot.ends_in_draft() && (given || step_tokens == 0)) {
    return RefuseField(".ends_in_draft", "true", "false where the step has no drafts of its own");
  }
  const int32_t drafted = given ? 0 : slot.ends_in_draft() ? step_tokens : accepted;
  RETURN_IF_ERROR(CheckRange(".drafts_verified", slot.drafts_verified(), drafted, most_drafts));
  RETURN_IF_ERROR(CheckRange(".relaxed_count", slot.relaxed_count(), 0, drafted));
  return CheckConfidences(slot, draft_len);
}

// A step of a constrained slot ends with the token that takes it behind its gate.
absl::Status ResultCheck::CheckGate(const worker::v1::ResultSlot& slot, const LiveSlot& live,
                                    int32_t step_tokens) const {
  const SlotAdmission& admission = live.sequence->admission;
  Gate gate = live.sequence->gate;
  if (!admission.gate.constrained || !live.given_tokens.empty()) return absl::OkStatus();
  for (int i = 0; i + 1 < slot.token_ids_size() && step_tokens > 0; ++i) {
    const Gate before = gate;
    gate = admission.gate.After(gate, slot.token_ids(i), i == 0 && slot.first_token(), admission.thinking);
    if (before == Gate::kBehind || gate != Gate::kBehind) continue;
    return Within(".token_ids", i, RefuseField("", slot.token_ids(i), "no gate token before the last token"));
  }
  return absl::OkStatus();
}

absl::Status ResultCheck::CheckDrafts(const worker::v1::ResultSlot& slot, const LiveSlot& live) const {
  const bool has = live.sequence->admission.gate.constrained && !slot.finished();
  RETURN_IF_ERROR(CheckRange(".drafts size", slot.drafts_size(), 0, has ? limits_.max_draft_len : 0));
  for (int i = 0; i < slot.drafts_size(); ++i) {
    // -1: the drafter's logits had no usable token.
    RETURN_IF_ERROR(
        Within(".drafts", i, CheckRange("", slot.drafts(i), -1, int64_t{limits_.vocab_size} - 1)));
  }
  return absl::OkStatus();
}

// None, or one for each draft of the next step.
absl::Status ResultCheck::CheckConfidences(const worker::v1::ResultSlot& slot, int32_t draft_len) const {
  if (slot.confidences_size() == 0) return absl::OkStatus();
  RETURN_IF_ERROR(CheckEqual(".confidences size", slot.confidences_size(), slot.finished() ? 0 : draft_len));
  for (int i = 0; i < slot.confidences_size(); ++i) {
    if (std::abs(slot.confidences(i)) <= kLargestConfidence) continue;
    return Within(
        ".confidences", i,
        RefuseField("", slot.confidences(i), absl::StrCat(-kLargestConfidence, "..", kLargestConfidence)));
  }
  return absl::OkStatus();
}

absl::Status ResultCheck::CheckLogprobs(const worker::v1::ResultSlot& slot, const Sequence& sequence) const {
  const int32_t wanted = sequence.admission.logprob_count;
  RETURN_IF_ERROR(CheckEqual(".logprobs size", slot.logprobs_size(), wanted < 0 ? 0 : slot.token_ids_size()));
  const int32_t top = std::min({std::max(wanted, 0), kMostTopLogprobs, limits_.vocab_size});
  for (int i = 0; i < slot.logprobs_size(); ++i) {
    const worker::v1::ResultLogprob& token = slot.logprobs(i);
    const auto check = [&]() -> absl::Status {
      const int64_t last_id = int64_t{limits_.vocab_size} - 1;
      RETURN_IF_ERROR(CheckRange(".token_id", token.token_id(), 0, last_id));
      RETURN_IF_ERROR(CheckFinite(".logprob", token.logprob()));
      RETURN_IF_ERROR(CheckEqual(".top_ids size", token.top_ids_size(), top));
      RETURN_IF_ERROR(CheckEqual(".top_logprobs size", token.top_logprobs_size(), top));
      for (int j = 0; j < top; ++j) {
        RETURN_IF_ERROR(Within(".top_ids", j, CheckRange("", token.top_ids(j), 0, last_id)));
        RETURN_IF_ERROR(Within(".top_logprobs", j, CheckFinite("", token.top_logprobs(j))));
      }
      return absl::OkStatus();
    };
    RETURN_IF_ERROR(Within(".logprobs", i, check()));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
