// Plan's admissions: which rank a waiting request goes to, and whether there is room.

#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace foredraft {

// In order, without overtaking, so that small requests cannot starve a large one.
void Scheduler::PlanAdmissions(SteadyTime now, IterationPlan* plan) {
  while (!waiting_.empty()) {
    Sequence* sequence = *waiting_.begin();
    Placement placement = Place(*sequence);
    if (placement.rank < 0) return;
    waiting_.erase(waiting_.begin());
    counters_.waiting_prompt_tokens -= sequence->prompt_len;
    Admit(sequence, placement, now, plan);
  }
}

// A request fits a rank that has a free slot, no swapped sequence (which would return first), room to reserve
// its extent, and the blocks for the whole prompt and its first step. The reservation is in the host store
// where possible, since only swappable sequences can make room for others.
bool Scheduler::FitsRank(const Sequence& sequence, int rank, Placement* placement) const {
  const RankState& state = ranks_[rank];
  if (!state.has_free_slot() || !state.swapped.empty()) return false;
  const int promised = state.pool_reserved + state.prefilling_held;
  const int prompt_blocks = state.BlocksFor(OwnPositions(sequence.prompt_len, options_.max_draft_len));
  const bool swappable = state.host_reserved + HostExtent(sequence) <= options_.host_block_count &&
                         promised + prompt_blocks <= state.pool().capacity();
  if (!swappable && promised + sequence.extent_blocks > state.pool().capacity()) return false;

  PrefixMatch match;
  if (options_.enable_block_reuse) {
    match = state.Match(sequence.request.prompt_ids, sequence.prompt_len - options_.reuse_reserve);
  }
  const int new_blocks = prompt_blocks - static_cast<int>(match.blocks.size());
  // A block for each sequence that decodes already, so that the admission does not swap one out.
  const int headroom = swappable ? DecodingCount(rank) : 0;
  if (new_blocks + headroom > state.pool().available() - state.UnheldIn(match)) return false;
  *placement = {.rank = rank, .swappable = swappable, .match = std::move(match)};
  return true;
}

// The rank with the fewest sequences, then the most blocks. A rank that has more of the prompt cached is
// preferred as long as it has at most an eighth of max_batch_size more sequences than that one.
Scheduler::Placement Scheduler::Place(const Sequence& sequence) const {
  auto emptier = [this](const Placement& a, const Placement& b) {
    const RankState& x = ranks_[a.rank];
    const RankState& y = ranks_[b.rank];
    if (x.slots_used() != y.slots_used()) return x.slots_used() < y.slots_used();
    return x.pool().available() > y.pool().available();
  };
  std::vector<Placement> placements;
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    Placement placement;
    if (FitsRank(sequence, rank, &placement)) placements.push_back(std::move(placement));
  }
  if (placements.empty()) return {};
  int fewest = options_.max_batch_size;
  for (const Placement& placement : placements) {
    fewest = std::min(fewest, ranks_[placement.rank].slots_used());
  }
  const int most_allowed = fewest + std::max(1, options_.max_batch_size / 8);
  Placement* best = nullptr;
  for (Placement& placement : placements) {
    if (ranks_[placement.rank].slots_used() > most_allowed) continue;
    const size_t hit = placement.match.blocks.size();
    if (best == nullptr || hit > best->match.blocks.size() ||
        (hit == best->match.blocks.size() && emptier(placement, *best))) {
      best = &placement;
    }
  }
  return std::move(*best);
}

void Scheduler::Admit(Sequence* sequence, const Placement& placement, SteadyTime now, IterationPlan* plan) {
  RankState& state = ranks_[placement.rank];
  const Request& request = sequence->request;
  sequence->rank = placement.rank;
  sequence->swappable = placement.swappable;
  sequence->queue_seconds = std::chrono::duration<double>(now - request.arrival).count();
  sequence->admitted_in = plan->number;
  if (sequence->admission_number == 0) {
    sequence->admission_number = next_admission_++;
  } else {
    ++counters_.resumed_requests;
  }
  sequence->reused_len = static_cast<int32_t>(placement.match.blocks.size()) * options_.tokens_per_block;
  sequence->prompt_planned = sequence->reused_len;

  state.TakeSlot(sequence);
  state.Reuse(sequence, placement.match);
  CHECK(state.Grow(sequence, OwnPositions(sequence->prompt_len, options_.max_draft_len)));
  if (sequence->swappable) {
    state.host_reserved += HostExtent(*sequence);
    state.prefilling_held += static_cast<int>(sequence->blocks.size());
  } else {
    state.pool_reserved += sequence->extent_blocks;
  }
  sequence->state = SequenceState::kPrefilling;
  state.prefilling.insert(sequence);
  ++running_;

  SlotAdmission admission{.slot = sequence->slot,
                          .sampling = request.sampling,
                          .logprob_count = request.logprob_count,
                          .phase = request.prompt_phase,
                          .thinking = request.thinking,
                          .draft_cap = DraftCap(*sequence),
                          .strict = request.strict_acceptance,
                          .prompt_len = sequence->prompt_len,
                          .length_limit = sequence->length_limit,
                          .stop_ids = request.stop_ids,
                          .reused_len = sequence->reused_len};
  if (sequence->reused_len > 0) {
    admission.boundary_block = placement.match.blocks.back();
    if (request.sampling.counts_tokens()) {
      admission.reused_ids.assign(request.prompt_ids.begin(),
                                  request.prompt_ids.begin() + sequence->reused_len);
    }
  }
  plan->ranks[placement.rank].admissions.push_back(std::move(admission));
  Name(sequence, plan->number);
}

}  // namespace foredraft
