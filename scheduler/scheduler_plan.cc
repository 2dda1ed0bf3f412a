// Plan: what the next iteration does, phase by phase.

#include <algorithm>

#include "base/check.h"
#include "scheduler/scheduler.h"

namespace foredraft {

IterationPlan Scheduler::Plan(SteadyTime now) {
  CHECK_LE(in_flight_.size(), 1u) << "at most one plan is in flight while the next is made";
  ExpireDeadlines(now);

  IterationPlan plan;
  plan.number = next_plan_;
  plan.draft_len = draft_policy_.upper();  // blocks are taken for this K; PlanDecode then chooses the step's
  plan.acceptance = speculation_.acceptance;
  plan.prefill_rows.assign(ranks_.size(), 0);
  plan.ended_prompts.assign(ranks_.size(), 0);
  plan.ranks.resize(ranks_.size());
  planning_ = {.number = plan.number, .forced = plan.acceptance.forced_length > 0};
  planning_.ranks.resize(ranks_.size());
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    planning_.ranks[rank].named.reserve(ranks_[rank].slots_used());
  }

  PlanReleases(&plan);
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    PlanGrowth(rank, &plan);
    PlanSwapsIn(rank, &plan);
  }
  PlanAdmissions(now, &plan);
  PlanPrefill(&plan);
  PlanDecode(&plan);
  if (IsEmpty(plan)) return plan;  // no step runs that could write through uncleared table entries

  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].TakeTableDeltas(&plan.ranks[rank].block_table_deltas);
  }
  ++next_plan_;
  in_flight_.push_back(std::move(planning_));
  return plan;
}

std::vector<uint64_t> Scheduler::PromptsOfLastPlan() const {
  CHECK(!in_flight_.empty());
  std::vector<uint64_t> ids;
  for (const LaunchedRank& rank : in_flight_.back().ranks) {
    for (const auto& [sequence, end] : rank.chunks) ids.push_back(sequence->request.id);
  }
  return ids;
}

void Scheduler::PlanReleases(IterationPlan* plan) {
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    plan->ranks[rank].releases = std::exchange(ranks_[rank].releases, {});
    plan->ranks[rank].dropped_images = std::exchange(ranks_[rank].dropped_images, {});
  }
}

int Scheduler::DraftCap(const Sequence& sequence) const {
  return std::clamp(sequence.request.draft_cap, 0, options_.max_draft_len);
}

// plan-bound, where `length` is length_upper: the step writes up to length + K, its drafter rows_ahead more.
int Scheduler::OwnPositions(int length, int draft_len) const {
  return length + draft_len + options_.drafter.rows_ahead + 1;
}

// Gives every decoding sequence the blocks of its next step. If there are too few, swaps out the last
// sequences in ComesFirst order.
void Scheduler::PlanGrowth(int rank, IterationPlan* plan) {
  RankState& state = ranks_[rank];
  const bool has_windows = state.group_count() > 1;
  CacheGroupCounts lacking(state.group_count());
  for (Sequence* sequence : state.slots()) {
    if (sequence == nullptr || sequence->state != SequenceState::kDecoding) continue;
    if (sequence->surely_finished()) continue;
    if (has_windows) state.Pass(sequence, sequence->length_lower());
    const int positions = OwnPositions(sequence->length_upper(), plan->draft_len);
    if (!state.Lacks(*sequence, positions)) continue;
    for (int group = 0; group < state.group_count(); ++group) {
      lacking[group] += state.Lacks(*sequence, group, positions);
    }
  }
  for (int group = 0; group < state.group_count(); ++group) {
    if (lacking[group] > state.pool(group).available()) return GrowByPreemption(rank, plan);
  }
  for (Sequence* sequence : state.slots()) {
    if (sequence == nullptr || sequence->state != SequenceState::kDecoding) continue;
    if (sequence->surely_finished()) continue;
    CHECK(state.Grow(sequence, OwnPositions(sequence->length_upper(), plan->draft_len)));
    sequence->live_in = plan->number;
  }
}

void Scheduler::GrowByPreemption(int rank, IterationPlan* plan) {
  RankState& state = ranks_[rank];
  std::vector<Sequence*> decoding;
  bool blocks_return_soon = false;  // the plan in flight ends a sequence
  for (Sequence* sequence : state.slots()) {
    if (sequence == nullptr || sequence->state == SequenceState::kPrefilling) continue;
    if (sequence->surely_finished()) {
      blocks_return_soon = true;
    } else {
      decoding.push_back(sequence);
    }
  }
  std::sort(decoding.begin(), decoding.end(), ComesFirst());
  std::vector<Sequence*> swappable;  // swapped out from the back
  std::copy_if(decoding.begin(), decoding.end(), std::back_inserter(swappable),
               [](const Sequence* sequence) { return sequence->swappable; });
  // Sequences reserved in the pool come first, so that no sequence is swapped out after it got blocks here.
  std::stable_partition(decoding.begin(), decoding.end(),
                        [](const Sequence* sequence) { return !sequence->swappable; });

  for (Sequence* sequence : decoding) {
    const int positions = OwnPositions(sequence->length_upper(), plan->draft_len);
    while (sequence->state == SequenceState::kDecoding && !state.Grow(sequence, positions)) {
      if (blocks_return_soon) break;  // the sequence skips this iteration, which is cheaper than a swap
      CHECK(!swappable.empty()) << "reservation: request " << sequence->request.id << ", rank " << rank
                                << ", iteration " << plan->number;
      SwapOutSequence(swappable.back(), plan);  // may be `sequence` itself
      swappable.pop_back();
    }
    if (sequence->state == SequenceState::kDecoding && !state.Lacks(*sequence, positions)) {
      sequence->live_in = plan->number;
    }
  }
}

// image-bound. The image includes the writes of the step in flight (stream-order).
void Scheduler::SwapOutSequence(Sequence* sequence, IterationPlan* plan) {
  RankState& state = ranks_[sequence->rank];
  const int slot = sequence->slot;
  SwapOut swap{.image_id = next_image_++, .slot = slot, .blocks = {}};
  for (int group = 0; group < state.group_count(); ++group) {
    const SequenceBlocks& blocks = sequence->groups[group];
    const CacheGroupShape& shape = state.shape(group);
    const int first = shape.FirstIndex(sequence->length_lower());
    const int end = shape.BlocksFor(sequence->length_upper() + options_.drafter.rows_ahead);
    CHECK(blocks.first_index <= first && end <= blocks.end_index()) << "image-bound, group " << group;
    const auto begin = blocks.ids.begin() - blocks.first_index;
    swap.blocks.push_back({.group = group, .first_index = first, .block_ids = {begin + first, begin + end}});
  }
  sequence->image_id = swap.image_id;
  state.Vacate(sequence);
  sequence->ends.clear();
  sequence->answer_end = kScratchBlock;
  state.EndPrompt(sequence);
  for (const CacheGroupBlocks& image : swap.blocks) {
    sequence->groups[image.group].first_index = image.first_index;
    sequence->groups[image.group].image_count = static_cast<int>(image.block_ids.size());
  }
  plan->ranks[sequence->rank].swaps_out.push_back(std::move(swap));
  sequence->state = SequenceState::kSwapped;
  sequence->may_offer = false;
  state.swapped.insert(sequence);
  --running_;
  ++counters_.preemptions;
}

int Scheduler::DecodingCount(int rank) const {
  const std::vector<Sequence*>& slots = ranks_[rank].slots();
  return static_cast<int>(std::count_if(slots.begin(), slots.end(), [](const Sequence* sequence) {
    return sequence != nullptr && sequence->state == SequenceState::kDecoding;
  }));
}

// Whether there is room for a swapped sequence's next step, for a block's worth of tokens more, and for a
// block of each sequence that decodes already.
bool Scheduler::FitsBack(const Sequence& sequence, int rank) const {
  const RankState& state = ranks_[rank];
  const int decoding = DecodingCount(rank);
  for (int group = 0; group < state.group_count(); ++group) {
    const SequenceBlocks& blocks = sequence.groups[group];
    const CacheGroupShape& shape = state.shape(group);
    const int length = std::min(sequence.length + shape.tokens_per_block, sequence.length_limit);
    const int grown = shape.BlocksFor(OwnPositions(length, options_.max_draft_len)) - blocks.first_index;
    const int wanted = std::max(blocks.image_count, std::min(grown, blocks.extent));
    if (wanted + decoding > state.pool(group).available()) return false;
  }
  return true;
}

// Swapped sequences return in order, before any admission, as soon as there is room.
void Scheduler::PlanSwapsIn(int rank, IterationPlan* plan) {
  RankState& state = ranks_[rank];
  RankPlan& rank_plan = plan->ranks[rank];
  if (!rank_plan.swaps_out.empty()) return;
  while (!state.swapped.empty() && state.has_free_slot()) {
    Sequence* sequence = *state.swapped.begin();
    CHECK_EQ(sequence->unresolved_steps, 0);
    if (!FitsBack(*sequence, rank)) return;
    state.swapped.erase(sequence);
    state.TakeSlot(sequence);
    state.TakeImage(sequence);
    SwapIn swap{.image_id = sequence->image_id, .slot = sequence->slot, .blocks = {}};
    for (int group = 0; group < state.group_count(); ++group) {
      const SequenceBlocks& blocks = sequence->groups[group];
      swap.blocks.push_back({.group = group, .first_index = blocks.first_index, .block_ids = blocks.ids});
    }
    rank_plan.swaps_in.push_back(std::move(swap));
    CHECK(state.Grow(sequence, OwnPositions(sequence->length_upper(), plan->draft_len)));
    sequence->state = SequenceState::kDecoding;
    sequence->live_in = plan->number;
    ++running_;
  }
}

// Whether the plan has a step of sequences whose prompts ended in an earlier plan.
bool Scheduler::Decodes(const IterationPlan& plan) const {
  return std::any_of(ranks_.begin(), ranks_.end(), [&plan](const RankState& rank) {
    return std::any_of(rank.slots().begin(), rank.slots().end(), [&plan](const Sequence* sequence) {
      return sequence != nullptr && sequence->live_in == plan.number;
    });
  });
}

// How long the plan's prompt tokens may take.
double Scheduler::PrefillSeconds(bool decodes) const {
  if (!options_.enable_chunked_prefill) return PrefillPace::kNoLimit;
  double seconds = PrefillPace::kNoLimit;
  if (options_.prefill_seconds > 0) seconds = options_.prefill_seconds;
  if (decodes && options_.decode_pause_seconds > 0)
    seconds = std::min(seconds, options_.decode_pause_seconds);
  return seconds;
}

// A prefill forward reads all weights, so while decodes run it waits for more prompts to share it.
bool Scheduler::PrefillIsDue(const IterationPlan& plan, double seconds) const {
  for (const RankState& rank : ranks_) {
    int64_t queued = 0;
    for (const Sequence* sequence : rank.prefilling) {
      queued += sequence->prompt_len - sequence->prompt_planned;
      const int64_t waited = static_cast<int64_t>(plan.number - sequence->admitted_in);
      if (waited >= options_.batching_wait_iters) return true;
    }
    if (!rank.prefilling.empty()) {
      const int32_t first = (*rank.prefilling.begin())->prompt_planned;
      if (queued >= prefill_pace_.Room({}, first, options_.max_num_tokens, seconds)) return true;
    }
  }
  return false;
}

void Scheduler::PlanPrefill(IterationPlan* plan) {
  const bool decodes = Decodes(*plan);
  const double seconds = PrefillSeconds(decodes);
  if (decodes && !PrefillIsDue(*plan, seconds)) return;
  for (int rank = 0; rank < options_.rank_count; ++rank) PlanRankPrefill(rank, seconds, plan);
}

void Scheduler::PlanRankPrefill(int rank, double seconds, IterationPlan* plan) {
  RankState& state = ranks_[rank];
  PrefillWork work;
  while (!state.prefilling.empty()) {
    Sequence* sequence = *state.prefilling.begin();
    const int32_t first = sequence->prompt_planned;
    const int32_t remaining = sequence->prompt_len - first;
    const int32_t room = prefill_pace_.Room(work, first, remaining, seconds);
    if (room == 0 || (room < remaining && !options_.enable_chunked_prefill)) break;
    const int32_t end = first + room;
    const bool last = end == sequence->prompt_len;
    state.MapChunk(sequence, first, end, last ? OwnPositions(end, options_.max_draft_len) : end, last);
    const std::vector<int32_t>& prompt = sequence->request.prompt_ids;
    plan->ranks[rank].prefill_chunks.push_back({.slot = sequence->slot,
                                                .first_position = first,
                                                .token_ids = {prompt.begin() + first, prompt.begin() + end},
                                                .last = last});
    work.Add(first, room);
    sequence->prompt_planned = end;
    planning_.ranks[rank].chunks.emplace_back(sequence, end);
    Name(sequence, plan->number);
    if (!last) break;  // no room is left
    PlanFirstMask(sequence, plan);
    ++plan->ended_prompts[rank];
    state.prefilling.erase(state.prefilling.begin());
    for (int group = 0; sequence->swappable && group < state.group_count(); ++group) {
      state.prefilling_held[group] -= sequence->groups[group].held();
    }
    sequence->state = SequenceState::kDecoding;
    sequence->length = sequence->prompt_len;
    sequence->live_in = plan->number;
  }
  plan->prefill_rows[rank] = work.tokens;
  if (work.tokens > planning_.prefill.tokens) planning_.prefill = work;
}

void Scheduler::PlanDecode(IterationPlan* plan) {
  if (constrained_count_ > 0 || !long_jobs_.empty()) HoldForMasks(plan);
  size_t most_live = 0;
  bool argmax = true;
  std::vector<int> live_by_cap(options_.max_draft_len + 1);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    std::vector<int32_t>& live_slots = plan->ranks[rank].live_slots;
    live_slots.reserve(ranks_[rank].slots_used());
    planning_.ranks[rank].live.reserve(ranks_[rank].slots_used());
    for (Sequence* sequence : ranks_[rank].slots()) {
      if (sequence == nullptr || sequence->live_in != plan->number) continue;
      live_slots.push_back(sequence->slot);
      argmax = argmax && sequence->argmax;
      planning_.ranks[rank].live.push_back({.sequence = sequence});
      Name(sequence, plan->number);
      // Given tokens fill the rows of drafts, whatever the request's cap.
      ++live_by_cap[sequence->replays() ? options_.max_draft_len : DraftCap(*sequence)];
    }
    most_live = std::max(most_live, live_slots.size());
  }
  if (most_live == 0) return;
  plan->argmax = argmax;
  plan->decode_bucket = *std::lower_bound(options_.batch_sizes.begin(), options_.batch_sizes.end(),
                                          static_cast<int>(most_live));
  PlanDrafts(live_by_cap, plan);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    for (LaunchedSlot& live : planning_.ranks[rank].live) {
      Sequence* const sequence = live.sequence;
      CHECK(!ranks_[rank].Lacks(*sequence, OwnPositions(sequence->length_upper(), plan->draft_len)))
          << "plan-bound";
      GiveTokens(live, plan->draft_len, &plan->ranks[rank]);
      if (!live.given) live.masking = MaskingOf(*sequence);
      ++sequence->live_plans;
      if (live.masking == Masking::kHeld) continue;
      sequence->unresolved_rows += plan->draft_len + 1;
      ++sequence->unresolved_steps;
    }
  }
  if (constrained_count_ > 0) PlanMasks(plan);
}

// Chooses the shape of the step.
void Scheduler::PlanDrafts(const std::vector<int>& live_by_cap, IterationPlan* plan) {
  StepDrafts drafts;
  bool gives = false;
  if (draft_policy_.reads_confidences()) {
    drafts.fresh = true;
    for (const LaunchedRank& rank : planning_.ranks) {
      std::vector<SequenceDrafts>& of_rank = drafts.ranks.emplace_back();
      for (const LaunchedSlot& live : rank.live) {
        const Sequence& sequence = *live.sequence;
        of_rank.push_back({.confidences = sequence.confidences, .cap = DraftCap(sequence)});
        drafts.fresh = drafts.fresh && sequence.unresolved_steps == 0;
        gives = gives || sequence.replays();
      }
    }
    plan->calibration = draft_policy_.calibration();
  }
  const StepShape shape = draft_policy_.ChooseShape(plan->decode_bucket, live_by_cap, drafts);
  plan->draft_len = shape.draft_len;
  // Given tokens take the rows of drafts, and have no confidences.
  const int verify_len = gives ? shape.draft_len : shape.verify_len;
  if (verify_len < shape.draft_len) plan->verify_rows = plan->decode_bucket * (verify_len + 1);
  last_draft_len_ = planning_.draft_len = plan->draft_len;
  planning_.cut_len = shape.draft_len - verify_len;
  planning_.decode_bucket = plan->decode_bucket;
}

void Scheduler::Name(Sequence* sequence, uint64_t plan_number) {
  if (sequence->last_plan == plan_number) return;
  sequence->last_plan = plan_number;
  ++sequence->plans_in_flight;
  planning_.ranks[sequence->rank].named.push_back(sequence);
}

}  // namespace foredraft
