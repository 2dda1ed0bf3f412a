#include "scheduler/sequence_constraint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/out_of_memory.h"
#include "base/status_macros.h"
#include "config/slot_limits.h"
#include "grammar/grammar.h"
#include "scheduler/mask_job.h"

namespace foredraft {
namespace {

SlotGate SlotGateOf(const Request& request) {
  const RequestConstraint& constraint = request.constraint;
  CHECK_LE(constraint.trigger_ids.size(), size_t{kMaxTriggerIds}) << "request " << request.id;
  SlotGate gate{.constrained = true,
                .first = constraint.trigger_ids.empty() ? Gate::kBehind : Gate::kTrigger,
                .opens_thought = false,
                .trigger_ids = constraint.trigger_ids};
  if (constraint.from_first_token) return gate;
  if (request.prompt_phase == Phase::kThinking) gate.first = Gate::kThinking;
  // Where the prompt itself has closed the thought, the model must not open another one.
  const bool closed = !request.prompt_ids.empty() && request.prompt_ids.back() == request.thinking.end;
  gate.opens_thought = request.thinking.begin >= 0 && !closed;
  // Without triggers the output is complete only after the grammar.
  if (constraint.trigger_ids.empty()) gate.barred_stop_count = constraint.turn_end_count;
  return gate;
}

}  // namespace

std::unique_ptr<SequenceConstraint> SequenceConstraint::Of(const Request& request) {
  if (request.constraint.grammar == nullptr) return nullptr;
  return std::unique_ptr<SequenceConstraint>(new SequenceConstraint(request));
}

SequenceConstraint::SequenceConstraint(const Request& request)
    : thinking_(request.thinking),
      slot_gate_(SlotGateOf(request)),
      gate_(slot_gate_.first),
      progress_(
          std::make_shared<GrammarProgress>(Matcher(request.constraint.grammar, request.constraint.end_ids))),
      client_(request.client),
      caller_(request.caller),
      line_ends_(request.constraint) {}

SequenceConstraint::~SequenceConstraint() = default;

absl::StatusOr<SequenceConstraint::MaskPtr> SequenceConstraint::FirstMask() {
  if (slot_gate_.first != Gate::kBehind || first_mask_ != nullptr) return first_mask_;
  CHECK(!has_first_token());
  return OrOutOfMemory([this]() -> absl::StatusOr<MaskPtr> {
    const MayLackMemory scope;
    ASSIGN_OR_RETURN(MaskPtr mask, progress_->FirstMask());
    first_mask_ = slot_gate_.opens_thought ? With(*mask, thinking_.begin) : std::move(mask);
    return first_mask_;
  });
}

bool SequenceConstraint::PassesGate(std::span<const int32_t> token_ids) const {
  if (gate_ == Gate::kBehind) return false;
  Gate gate = gate_;
  for (const int32_t token_id : token_ids) {
    gate = GateAfter(slot_gate_.tokens(thinking_), gate, token_id, /*is_first=*/false);
  }
  return gate == Gate::kBehind;
}

std::shared_ptr<MaskJob> SequenceConstraint::NextRows() const {
  return std::make_shared<MaskJob>(progress_, line_ends_, client_, caller_);
}

absl::Status SequenceConstraint::Take(std::span<const int32_t> token_ids) {
  const std::vector<MaskPtr> row_masks = std::exchange(row_masks_, {});
  size_t row = 0;
  for (const int32_t token_id : token_ids) {
    const Gate before = gate_;
    const bool is_first = taken_count_++ == 0;
    gate_ = GateAfter(slot_gate_.tokens(thinking_), gate_, token_id, is_first);
    if (before == Gate::kBehind) {
      const MaskPtr mask = is_first ? first_mask_ : row < row_masks.size() ? row_masks[row++] : nullptr;
      if (mask == nullptr || !mask->Allows(token_id)) {
        return absl::InternalError(
            absl::StrFormat("token %d, number %d of the answer, is not one that the constraint allows there",
                            token_id, taken_count_));
      }
    }
    // The end of thinking and line ends after it are no part of the output's grammar; a trigger is its first
    // token.
    if (gate_ != Gate::kBehind) continue;
    if (before == Gate::kThinking) {
      line_ends_.ThoughtEnds();
    } else if (!line_ends_.Take(token_id)) {
      progress_->Add(token_id);
    }
  }
  return absl::OkStatus();
}

}  // namespace foredraft
