// Masks: which rows of the next step choose with one, which slots are held, and how a constrained sequence
// follows its tokens (no-mask-no-token, docs/structured-output.md section 5).

#include <algorithm>
#include <span>
#include <vector>

#include "base/check.h"
#include "grammar/grammar.h"
#include "scheduler/scheduler.h"

namespace foredraft {
namespace {

bool IsBehindGate(const Sequence& sequence) {
  return sequence.constraint != nullptr && sequence.constraint->gate() == Gate::kBehind;
}

}  // namespace

bool Scheduler::NeedsResults() const {
  if (constrained_count_ == 0) return false;
  for (const RankState& rank : ranks_) {
    for (const Sequence* sequence : rank.slots()) {
      if (sequence == nullptr || sequence->state != SequenceState::kDecoding) continue;
      if (IsBehindGate(*sequence) && !sequence->surely_finished()) return true;
    }
  }
  return false;
}

// The index in the plan of `mask`, which is added where the plan does not have it.
int32_t Scheduler::AddMask(int rank, std::shared_ptr<const TokenMask> mask, IterationPlan* plan) {
  std::vector<std::shared_ptr<const TokenMask>>& masks = plan->ranks[rank].masks;
  const auto [entry, is_new] =
      planning_.ranks[rank].mask_indices.try_emplace(mask.get(), static_cast<int32_t>(masks.size()));
  if (is_new) masks.push_back(std::move(mask));
  return entry->second;
}

void Scheduler::PlanFirstMask(Sequence* sequence, IterationPlan* plan) {
  if (sequence->constraint == nullptr) return;
  absl::StatusOr<std::shared_ptr<const TokenMask>> mask = sequence->constraint->FirstMask();
  CHECK(mask.ok()) << "it was made for the admission";
  if (*mask == nullptr) return;
  const int32_t index = AddMask(sequence->rank, *std::move(mask), plan);
  plan->ranks[sequence->rank].first_masks.push_back({.slot = sequence->slot, .mask_index = index});
}

// How the step treats a live sequence without given tokens. The masks of its rows follow from its tokens so
// far, so all of its steps must have results. Without masks the step must leave it alone where it is behind
// its gate, or may be: that depends on the first token in the iteration that ends its prompt.
Scheduler::Masking Scheduler::MaskingOf(const Sequence& sequence) const {
  if (sequence.constraint == nullptr) return Masking::kFree;
  const bool is_known = sequence.live_plans == 0;
  if (!sequence.constraint->has_first_token() && is_known) return Masking::kHeld;  // the prompt ends here
  if (sequence.constraint->gate() != Gate::kBehind) return Masking::kFree;
  return is_known ? Masking::kMasked : Masking::kHeld;
}

// After all live slots are known, with K. A sequence whose masks cannot be made ends here; the plan holds its
// slot.
void Scheduler::PlanMasks(IterationPlan* plan) {
  struct Job {
    LaunchedSlot* live = nullptr;
    std::span<const int32_t> drafts;  // of the drafter, that the step can verify
    RowLimits limits;
    absl::StatusOr<GrammarRows> rows;
  };
  std::vector<Job> jobs;
  for (LaunchedRank& rank : planning_.ranks) {
    for (LaunchedSlot& live : rank.live) {
      if (live.masking != Masking::kMasked) continue;
      const Sequence& sequence = *live.sequence;
      const size_t most = std::min(plan->draft_len, DraftCap(sequence));
      jobs.push_back({.live = &live,
                      .drafts = {sequence.drafts.data(), std::min(most, sequence.drafts.size())},
                      .limits = {.drafts = most, .forced_drafts = size_t(options_.drafter.forced_limit())},
                      .rows = GrammarRows()});
    }
  }
  mask_workers_.Run(static_cast<int>(jobs.size()), [&](int i) {
    jobs[i].rows = jobs[i].live->sequence->constraint->RowsAlong(jobs[i].drafts, jobs[i].limits);
  });
  counters_.mask_steps += jobs.empty() ? 0 : 1;
  counters_.mask_seconds = mask_workers_.seconds();
  size_t job = 0;
  for (size_t rank = 0; rank < planning_.ranks.size(); ++rank) {
    for (LaunchedSlot& live : planning_.ranks[rank].live) {
      if (live.masking == Masking::kFree) continue;
      SlotMasks& entry = plan->ranks[rank].slot_masks.emplace_back(SlotMasks{.slot = live.sequence->slot});
      if (live.masking == Masking::kHeld) continue;
      const Job& made = jobs[job++];
      if (!made.rows.ok()) {
        End(live.sequence, FinishReason::kError, made.rows.status());
        continue;
      }
      NoteRows(live, made.drafts, *made.rows);
      entry.forced_drafts = made.rows->forced_drafts;
      for (const auto& mask : made.rows->masks) {
        entry.mask_indices.push_back(AddMask(static_cast<int>(rank), mask, plan));
      }
    }
  }
}

// `drafts`: the drafter's, along which the rows were made.
void Scheduler::NoteRows(LaunchedSlot& live, std::span<const int32_t> drafts, const GrammarRows& rows) {
  live.mask_count = static_cast<int>(rows.masks.size());
  live.forced_drafts = static_cast<int>(rows.forced_drafts.size());
  // Rows also end with a draft that ends the output.
  const size_t own = rows.masks.size() - 1 - rows.forced_drafts.size();
  live.own_drafts = static_cast<int>(own);
  live.leaves_grammar = own < drafts.size() && !rows.masks[own]->Allows(drafts[own]);
  counters_.masks += rows.masks.size();
  counters_.forced_drafts += rows.forced_drafts.size();
  counters_.drafts_outside_grammar += live.leaves_grammar ? 1 : 0;
}

// The sequence takes the tokens that it did not have yet. A step in flight that was launched while its gate
// was up does nothing if they lower it.
absl::Status Scheduler::TakeTokens(const LaunchedPlan& launched, Sequence* sequence,
                                   const SlotResult& result) {
  if (sequence->constraint == nullptr) return absl::OkStatus();
  sequence->drafts = result.drafts;
  const bool was_behind = IsBehindGate(*sequence);
  absl::Status status = sequence->constraint->Take(result.token_ids);
  if (was_behind || !IsBehindGate(*sequence)) return status;
  for (LaunchedPlan& plan : in_flight_) {
    if (plan.number <= launched.number) continue;
    for (LaunchedSlot& live : plan.ranks[sequence->rank].live) {
      if (live.sequence != sequence || live.given || live.masking != Masking::kFree) continue;
      live.masking = Masking::kHeld;
      sequence->unresolved_rows -= plan.draft_len + 1;
      --sequence->unresolved_steps;
    }
  }
  return status;
}

}  // namespace foredraft
