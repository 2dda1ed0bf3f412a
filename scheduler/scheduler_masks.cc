// Masks: which rows of the next step choose with one, which slots are held, and how a constrained sequence
// follows its tokens (no-mask-no-token, docs/structured-output.md section 5).

#include <algorithm>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "grammar/grammar.h"
#include "scheduler/mask_job.h"
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
      // A sequence that a plan left out because its masks are not ready waits for no results.
      if (sequence->mask_job != nullptr && sequence->live_plans == 0) continue;
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
  const auto add = [&](std::shared_ptr<const TokenMask> mask) {
    const int32_t index = AddMask(sequence->rank, std::move(mask), plan);
    plan->ranks[sequence->rank].first_masks.push_back({.slot = sequence->slot, .mask_index = index});
  };
  // The lost ranks may have reused blocks of generated tokens for the prompt, whose bits are not those of a
  // prefill. So a mask allows the delivered token alone.
  if (options_.reuse_generated && sequence->replay_len > 0) {
    const int32_t token = sequence->output_ids.front();
    TokenMask given{.vocab_size = token + 1, .count = 1, .ids = {token}, .words = {}};
    return add(std::make_shared<const TokenMask>(std::move(given)));
  }
  if (sequence->constraint == nullptr) return;
  absl::StatusOr<std::shared_ptr<const TokenMask>> mask = sequence->constraint->FirstMask();
  CHECK(mask.ok()) << "it was made for the admission";
  if (*mask != nullptr) add(*std::move(mask));
}

// How the step treats a live sequence without given tokens. The masks of its rows follow from its tokens so
// far, so all of its steps must have results. Without masks the step must hold it where it is behind its gate
// or may be: in the iteration that ends its prompt the first token decides that.
Scheduler::Masking Scheduler::MaskingOf(const Sequence& sequence) const {
  if (sequence.constraint == nullptr) return Masking::kFree;
  const bool is_known = sequence.live_plans == 0;
  if (!sequence.constraint->has_first_token() && is_known) return Masking::kHeld;  // the prompt ends here
  if (sequence.constraint->gate() != Gate::kBehind) return Masking::kFree;
  return is_known ? Masking::kMasked : Masking::kHeld;
}

// Charges the long jobs that have ended since the last plan.
void Scheduler::CountLongJobs() {
  std::erase_if(long_jobs_, [this](const std::shared_ptr<MaskJob>& job) {
    if (!job->is_done()) return false;
    CountWork(*job);
    return true;
  });
}

void Scheduler::CountWork(MaskJob& job) {
  mask_budget_.Charge(job.client, job.TakeSteps());
  const double seconds = job.TakeSeconds();
  counters_.mask_seconds += seconds;
  mask_seconds_[job.caller] += seconds;
}

void Scheduler::MakeLater(const std::shared_ptr<MaskJob>& job) {
  long_jobs_.push_back(job);
  mask_workers_.Later(job, mask_budget_.Owes(job->client));
}

// The most drafts and forced drafts of the slot that the step could verify.
RowLimits Scheduler::RowLimitsOf(const Sequence& sequence, int draft_len) const {
  return {.drafts = static_cast<size_t>(std::min(draft_len, DraftCap(sequence))),
          .forced_drafts = static_cast<size_t>(options_.drafter.forced_limit())};
}

// Whether the sequence's masks may keep it out of the next step: they are not ready, and may not be made in
// the plan, because its client owes work or has a long job already.
bool Scheduler::LacksMasks(const Sequence& sequence) const {
  const MaskJob& job = *sequence.mask_job;
  if (options_.masks_are_late && options_.masks_are_late()) return true;
  if (job.is_queued()) return !job.is_done();
  return mask_budget_.Owes(job.client) > 0 ||
         std::any_of(long_jobs_.begin(), long_jobs_.end(),
                     [&job](const std::shared_ptr<MaskJob>& other) { return other->client == job.client; });
}

// Leaves out of the plan the sequences whose masks are not ready. If nothing would be left to do, the plan
// waits for masks, because then nobody suffers from what their clients owe.
void Scheduler::HoldForMasks(IterationPlan* plan) {
  CountLongJobs();
  mask_budget_.Pay();
  std::vector<Sequence*> lacking;
  bool has_work = !in_flight_.empty() || HasPrefill(*plan);
  for (const RankState& rank : ranks_) {
    for (Sequence* sequence : rank.slots()) {
      if (sequence == nullptr || sequence->live_in != plan->number) continue;
      if (sequence->replays() || MaskingOf(*sequence) != Masking::kMasked) {
        has_work = true;
        continue;
      }
      if (sequence->mask_job == nullptr) {
        sequence->mask_job = sequence->constraint->NextRows();
        sequence->mask_job->Aim(sequence->drafts, RowLimitsOf(*sequence, last_draft_len_));
      }
      // A prompt that ends in this plan is live in its step, after a loss too.
      const bool ends_prompt = sequence->last_plan == plan->number;
      if (!ends_prompt && LacksMasks(*sequence)) {
        lacking.push_back(sequence);
      } else {
        has_work = true;
      }
    }
  }
  if (!has_work) {
    const auto may_try = [](const Sequence* sequence) { return !sequence->mask_job->is_queued(); };
    if (std::erase_if(lacking, may_try) == 0 && !lacking.empty()) WaitForMasks(&lacking);
  }
  for (Sequence* sequence : lacking) sequence->live_in = 0;
  counters_.held_slots += lacking.size();
}

// Waits until one of the sequences has its masks, and removes all sequences that have theirs.
void Scheduler::WaitForMasks(std::vector<Sequence*>* lacking) {
  for (Sequence* sequence : *lacking) {
    if (!sequence->mask_job->is_queued()) MakeLater(sequence->mask_job);
  }
  const auto is_ready = [](const Sequence* sequence) { return sequence->mask_job->is_done(); };
  while (std::none_of(lacking->begin(), lacking->end(), is_ready)) mask_workers_.FinishOne();
  CountLongJobs();
  std::erase_if(*lacking, is_ready);
}

// Called once all live slots and K are known. Masks that take long are made while other steps run, and the
// slot is held. A sequence whose masks cannot be made ends here; the plan holds its slot.
void Scheduler::PlanMasks(IterationPlan* plan) {
  std::vector<MaskJob*> attempts;
  for (LaunchedRank& rank : planning_.ranks) {
    for (LaunchedSlot& live : rank.live) {
      if (live.masking != Masking::kMasked || live.sequence->mask_job->is_queued()) continue;
      MaskJob& job = *live.sequence->mask_job;
      job.Aim(live.sequence->drafts, RowLimitsOf(*live.sequence, plan->draft_len));
      attempts.push_back(&job);
    }
  }
  if (!attempts.empty()) {
    const auto count = static_cast<int64_t>(attempts.size());
    const int64_t allowance = std::max(kLeastAttempt, mask_budget_.per_step() / count);
    mask_workers_.Run(static_cast<int>(count), [&](int i) { attempts[i]->Run(allowance, /*waits=*/false); });
    for (MaskJob* job : attempts) CountWork(*job);
    WaitUnlessUseful(*plan);
  }
  bool has_masks = false;
  for (size_t rank = 0; rank < planning_.ranks.size(); ++rank) {
    for (LaunchedSlot& live : planning_.ranks[rank].live) {
      if (live.masking == Masking::kFree) continue;
      SlotMasks& entry = plan->ranks[rank].slot_masks.emplace_back(SlotMasks{.slot = live.sequence->slot});
      if (live.masking == Masking::kMasked) has_masks |= PlanRows(live, plan, static_cast<int>(rank), entry);
    }
  }
  counters_.mask_steps += has_masks ? 1 : 0;
}

// Waits for masks if the plan would do nothing else than hold slots.
void Scheduler::WaitUnlessUseful(const IterationPlan& plan) {
  if (!in_flight_.empty() || HasPrefill(plan)) return;
  std::vector<Sequence*> lacking;
  for (const LaunchedRank& rank : planning_.ranks) {
    for (const LaunchedSlot& live : rank.live) {
      if (live.masking == Masking::kHeld) continue;
      if (live.masking == Masking::kFree || live.sequence->mask_job->is_done()) return;
      lacking.push_back(live.sequence);
    }
  }
  if (!lacking.empty()) WaitForMasks(&lacking);
}

// Gives the slot the masks of its rows. False: it has none.
bool Scheduler::PlanRows(LaunchedSlot& live, IterationPlan* plan, int rank, SlotMasks& entry) {
  Sequence* const sequence = live.sequence;
  if (!sequence->mask_job->is_done()) {
    if (!sequence->mask_job->is_queued()) MakeLater(sequence->mask_job);
    HoldLaunched(live, plan->draft_len);
    return false;
  }
  const std::shared_ptr<MaskJob> job = std::exchange(sequence->mask_job, nullptr);
  if (!job->rows().ok()) {
    End(sequence, FinishReason::kError, job->rows().status());
    return false;
  }
  const GrammarRows rows = job->RowsFor(plan->draft_len);
  const size_t drafts = std::min<size_t>(job->drafts().size(), plan->draft_len);
  NoteRows(live, job->drafts().first(drafts), rows);
  sequence->constraint->SetRowMasks(rows.masks);
  entry.forced_drafts = rows.forced_drafts;
  for (const auto& mask : rows.masks) entry.mask_indices.push_back(AddMask(rank, mask, plan));
  return true;
}

// Makes the step, which counted on the slot, hold it.
void Scheduler::HoldLaunched(LaunchedSlot& live, int draft_len) {
  live.masking = Masking::kHeld;
  live.sequence->unresolved_rows -= draft_len + 1;
  --live.sequence->unresolved_steps;
}

std::vector<std::pair<std::string, double>> Scheduler::TakeMaskSeconds() {
  std::vector<std::pair<std::string, double>> seconds(mask_seconds_.begin(), mask_seconds_.end());
  mask_seconds_.clear();
  return seconds;
}

// `drafts`: the drafter's, along which the rows were made.
void Scheduler::NoteRows(LaunchedSlot& live, std::span<const int32_t> drafts, const GrammarRows& rows) {
  live.mask_count = static_cast<int>(rows.masks.size());
  live.forced_drafts = static_cast<int>(rows.forced_drafts.size());
  // Rows also stop at a draft that ends the output.
  const size_t own = rows.masks.size() - 1 - rows.forced_drafts.size();
  live.own_drafts = static_cast<int>(own);
  live.leaves_grammar = own < drafts.size() && !rows.masks[own]->Allows(drafts[own]);
  counters_.masks += rows.masks.size();
  counters_.forced_drafts += rows.forced_drafts.size();
  counters_.drafts_outside_grammar += live.leaves_grammar ? 1 : 0;
}

// The sequence takes the tokens that it did not have yet. If these tokens lower its gate, a step in flight
// that was launched before does nothing for it.
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
      HoldLaunched(live, plan.draft_len);
    }
  }
  return status;
}

}  // namespace foredraft
