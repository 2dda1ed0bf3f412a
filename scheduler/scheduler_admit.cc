// Plan's admissions: which rank a waiting request goes to, and whether there is room.

#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace foredraft {

// Admits requests in the order of the queue, without overtaking, so that small ones cannot starve a large
// one.
void Scheduler::PlanAdmissions(SteadyTime now, IterationPlan* plan) {
  while (!waiting_.empty()) {
    Sequence* sequence = waiting_.First();
    if (sequence->constraint != nullptr) {
      if (absl::Status made = sequence->constraint->FirstMask().status(); !made.ok()) {
        End(sequence, FinishReason::kError, made);
        continue;
      }
    }
    Placement placement = Place(*sequence);
    if (placement.rank < 0) return;
    waiting_.Take(sequence);
    counters_.waiting_prompt_tokens -= sequence->prompt_len;
    Admit(sequence, placement, now, plan);
  }
}

// A request fits a rank that has a free slot, no swapped sequence (which would return first), room to reserve
// its extent, and the blocks for the whole prompt and its first step. Prefix ends are kept where there is
// room for them too, but no sequence becomes unswappable for them.
bool Scheduler::FitsRank(const Sequence& sequence, int rank, Placement* placement) const {
  const RankState& state = ranks_[rank];
  if (!state.has_free_slot() || !state.swapped.empty()) return false;
  if (sequence.constraint != nullptr && constrained_of_rank_[rank] >= options_.max_live_constraints) {
    return false;
  }
  *placement = {.rank = rank};
  if (!HasRoom(sequence, rank, /*end_count=*/0, &placement->swappable)) return false;
  if (options_.enable_block_reuse) {
    const Request& request = sequence.request;
    placement->match = state.Match(request.reuse_scope, request.prompt_ids,
                                   sequence.prompt_len - options_.drafter.reuse_reserve);
  }
  placement->ends = EndsToKeep(sequence, placement->match);
  if (!placement->ends.empty()) {
    bool swappable = false;
    if (HasRoom(sequence, rank, static_cast<int>(placement->ends.size()), &swappable) &&
        swappable == placement->swappable && HasBlocks(sequence, rank, *placement)) {
      return true;
    }
    placement->ends.clear();
  }
  return HasBlocks(sequence, rank, *placement);
}

// Whether the extent can be reserved. The reservation is in the host store where possible, since only
// swappable sequences can make room for others.
bool Scheduler::HasRoom(const Sequence& sequence, int rank, int end_count, bool* swappable) const {
  const RankState& state = ranks_[rank];
  const int draft_len = options_.max_draft_len;
  const int rows_ahead = options_.drafter.rows_ahead;
  const int prompt_positions = OwnPositions(sequence.prompt_len, draft_len);
  const int all_positions = OwnPositions(sequence.length_limit, draft_len);
  *swappable = state.host_reserved + HostExtent(sequence) <= options_.host_frame_count;
  bool fits_pools = true;
  for (int group = 0; group < state.group_count(); ++group) {
    const CacheGroupShape& shape = state.shape(group);
    const int room = state.pool(group).capacity() - state.promised(group);
    *swappable &= shape.PromptBlocks(prompt_positions, end_count, draft_len, rows_ahead) <= room;
    fits_pools &= shape.PromptExtent(all_positions, end_count, draft_len, rows_ahead) <= room;
  }
  return *swappable || fits_pools;
}

// Whether the blocks are there, and one more for each sequence that decodes already, so that the admission
// swaps none of those out.
bool Scheduler::HasBlocks(const Sequence& sequence, int rank, const Placement& placement) const {
  const RankState& state = ranks_[rank];
  const CacheGroupCounts fresh = FreshBlocks(sequence, placement);
  const int headroom = placement.swappable ? DecodingCount(rank) : 0;
  for (int group = 0; group < state.group_count(); ++group) {
    const int available = state.pool(group).available() - state.UnheldIn(placement.match, group);
    if (fresh[group] + headroom > available) return false;
  }
  return true;
}

// The prefix ends that a prompt leaves behind, by their lengths (offer in scheduler.h).
std::vector<int32_t> Scheduler::EndsToKeep(const Sequence& sequence, const PrefixMatch& match) const {
  if (options_.groups.size() == 1 || !options_.enable_block_reuse) return {};
  const int size = options_.groups[kHistoryGroup].tokens_per_block;
  const int reused = static_cast<int>(match.blocks.size());
  const int last = (sequence.prompt_len - options_.drafter.offer_margin) / size;
  std::vector<int32_t> ends;
  if (match.cached_count > reused) ends.push_back(match.cached_count * size);
  if (last > std::max(reused, match.cached_count)) ends.push_back(last * size);
  return ends;
}

CacheGroupCounts Scheduler::FreshBlocks(const Sequence& sequence, const Placement& placement) const {
  const int positions = OwnPositions(sequence.prompt_len, options_.max_draft_len);
  const int reused_len =
      static_cast<int>(placement.match.blocks.size()) * options_.groups[kHistoryGroup].tokens_per_block;
  CacheGroupCounts fresh;
  for (const CacheGroupShape& shape : options_.groups) {
    fresh.push_back(shape.FreshBlocks(positions, reused_len, static_cast<int>(placement.ends.size()),
                                      options_.max_draft_len, options_.drafter.rows_ahead));
  }
  return fresh;
}

// Frames of the host store that a sequence reserves if it may be swapped.
int64_t Scheduler::HostExtent(const Sequence& sequence) const {
  int64_t frames = options_.host_image_frames;
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    frames += int64_t{sequence.groups[group].extent} * options_.groups[group].host_frames_per_block;
  }
  return frames;
}

// Chooses the rank with the fewest sequences, then the most available blocks. A rank that has more of the
// prompt cached is preferred as long as it has at most max_batch_size / 8 sequences more than the fewest.
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
  sequence->reused_len =
      static_cast<int32_t>(placement.match.blocks.size()) * options_.groups[kHistoryGroup].tokens_per_block;
  sequence->ends = placement.ends;
  sequence->prompt_planned = sequence->reused_len;

  state.TakeSlot(sequence);
  state.Reuse(sequence, placement.match);
  state.Hold(sequence, FreshBlocks(*sequence, placement));
  const int all_positions = OwnPositions(sequence->length_limit, options_.max_draft_len);
  for (int group = 0; group < state.group_count(); ++group) {
    SequenceBlocks& blocks = sequence->groups[group];
    blocks.limit = state.shape(group).PromptExtent(all_positions, static_cast<int>(placement.ends.size()),
                                                   options_.max_draft_len, options_.drafter.rows_ahead);
    if (!sequence->swappable) state.pool_reserved[group] += blocks.limit;
  }
  if (sequence->swappable) state.host_reserved += HostExtent(*sequence);
  sequence->state = SequenceState::kPrefilling;
  state.prefilling.insert(sequence);
  ++running_;
  if (sequence->constraint != nullptr) {
    ++constrained_count_;
    ++constrained_of_rank_[sequence->rank];
  }

  SlotAdmission admission{.slot = sequence->slot,
                          .sampling = request.sampling,
                          .logprob_count = request.logprob_count,
                          .phase = request.prompt_phase,
                          .thinking = request.thinking,
                          .thinking_budget = request.thinking_budget,
                          .draft_cap = DraftCap(*sequence),
                          .strict = request.strict_acceptance,
                          .prompt_len = sequence->prompt_len,
                          .length_limit = sequence->length_limit,
                          .stop_ids = request.stop_ids,
                          .reused_len = sequence->reused_len};
  if (sequence->constraint != nullptr) admission.gate = sequence->constraint->slot_gate();
  if (sequence->reused_len > 0) {
    admission.boundary_block = placement.match.blocks.back();
    if (request.sampling.counts_tokens()) {
      admission.reused_ids.assign(request.prompt_ids.begin(),
                                  request.prompt_ids.begin() + sequence->reused_len);
    }
  }
  sequence->argmax = PlainArgmax(admission);
  plan->ranks[placement.rank].admissions.push_back(std::move(admission));
  Name(sequence, plan->number);
}

}  // namespace foredraft
