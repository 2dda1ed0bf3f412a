#include "scheduler/sequence_constraint.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "grammar/grammar.h"

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
  // Without triggers the output is not complete before the grammar has been there.
  if (constraint.trigger_ids.empty()) gate.barred_stop_count = constraint.turn_end_count;
  return gate;
}

// The mask and one more token.
std::shared_ptr<const TokenMask> With(const TokenMask& mask, int32_t token_id) {
  TokenMask wider = mask;
  if (mask.Allows(token_id) || token_id >= mask.vocab_size) {
    return std::make_shared<const TokenMask>(std::move(wider));
  }
  ++wider.count;
  if (mask.is_list()) {
    wider.ids.insert(std::lower_bound(wider.ids.begin(), wider.ids.end(), token_id), token_id);
  } else {
    wider.words[token_id / 32] |= 1u << (token_id % 32);
  }
  return std::make_shared<const TokenMask>(std::move(wider));
}

std::vector<std::pair<int32_t, int>> WithLengths(const RequestConstraint& constraint) {
  std::vector<std::pair<int32_t, int>> line_ends;
  for (const int32_t id : constraint.line_end_ids) {
    line_ends.emplace_back(id, static_cast<int>(constraint.grammar->vocabulary().bytes(id).size()));
  }
  return line_ends;
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
      matcher_(std::make_unique<Matcher>(request.constraint.grammar, request.constraint.end_ids)),
      line_ends_(WithLengths(request.constraint)) {}

SequenceConstraint::~SequenceConstraint() = default;

absl::StatusOr<SequenceConstraint::MaskPtr> SequenceConstraint::FirstMask() {
  if (slot_gate_.first != Gate::kBehind || first_mask_ != nullptr) return first_mask_;
  CHECK(!has_first_token());
  ASSIGN_OR_RETURN(first_mask_, matcher_->Mask());
  if (slot_gate_.opens_thought) first_mask_ = With(*first_mask_, thinking_.begin);
  return first_mask_;
}

bool SequenceConstraint::PassesGate(std::span<const int32_t> token_ids) const {
  if (gate_ == Gate::kBehind) return false;
  Gate gate = gate_;
  for (const int32_t token_id : token_ids) {
    gate = slot_gate_.After(gate, token_id, /*is_first=*/false, thinking_);
  }
  return gate == Gate::kBehind;
}

absl::StatusOr<GrammarRows> SequenceConstraint::RowsAlong(std::span<const int32_t> drafts,
                                                          const RowLimits& limits) const {
  // The drafts that are line ends come before the grammar, so the rows up to them, and the row after the last
  // one, have the grammar's first mask and the line ends that may come yet.
  std::vector<int> left = {line_ends_left_};
  const auto fits = [&](int32_t draft) { return LineEndsOf(draft) > 0 && LineEndsOf(draft) <= left.back(); };
  size_t skipped = 0;
  for (; skipped < std::min(drafts.size(), limits.drafts) && fits(drafts[skipped]); ++skipped) {
    left.push_back(left.back() - LineEndsOf(drafts[skipped]));
  }
  RowLimits rest = limits;
  rest.drafts -= skipped;
  ASSIGN_OR_RETURN(GrammarRows rows, matcher_->RowsAlong(drafts.subspan(skipped), rest));
  if (line_ends_left_ == 0) return rows;
  const MaskPtr first = rows.masks.front();
  rows.masks.insert(rows.masks.begin(), skipped, first);
  for (size_t row = 0; row <= skipped; ++row) rows.masks[row] = WithLineEnds(first, left[row]);
  return rows;
}

int SequenceConstraint::LineEndsOf(int32_t token_id) const {
  for (const auto& [id, length] : line_ends_) {
    if (id == token_id) return length;
  }
  return 0;
}

SequenceConstraint::MaskPtr SequenceConstraint::WithLineEnds(MaskPtr mask, int left) const {
  for (const auto& [id, length] : line_ends_) {
    if (length <= left) mask = With(*mask, id);
  }
  return mask;
}

absl::Status SequenceConstraint::Take(std::span<const int32_t> token_ids) {
  for (const int32_t token_id : token_ids) {
    const Gate before = gate_;
    gate_ = slot_gate_.After(gate_, token_id, /*is_first=*/taken_count_++ == 0, thinking_);
    // The end of thinking and line ends behind it are no part of the output's grammar; a trigger is its first
    // token.
    if (gate_ != Gate::kBehind) continue;
    if (before == Gate::kThinking) {
      line_ends_left_ = line_ends_.empty() ? 0 : kMostLineEnds;
      continue;
    }
    if (const int line_ends = LineEndsOf(token_id); line_ends > 0 && line_ends <= line_ends_left_) {
      line_ends_left_ -= line_ends;
      continue;
    }
    line_ends_left_ = 0;
    ASSIGN_OR_RETURN(const bool allowed, matcher_->Advance(token_id));
    if (allowed) continue;
    return absl::InternalError(
        absl::StrFormat("token %d, number %d of the answer, is not one that the constraint allows there",
                        token_id, taken_count_));
  }
  return absl::OkStatus();
}

}  // namespace foredraft
