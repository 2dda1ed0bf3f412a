#include "scheduler/scheduler.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>

#include "base/check.h"

namespace foredraft {
Scheduler::Scheduler(const SchedulerOptions& options)
    : options_(options),
      prefill_pace_(options.max_num_tokens),
      draft_policy_(options.batch_sizes, options.max_draft_len, options.draft_len, options.draft_policy,
                    options.drafter.block_rows > 0),
      last_draft_len_(options.draft_len),
      waiting_(options.priority_ageing),
      mask_budget_(options.mask_threads),
      mask_workers_(options.mask_threads) {
  CHECK_GT(options.rank_count, 0);
  CHECK_GT(options.max_num_tokens, 0);
  CHECK(!options.batch_sizes.empty());
  CHECK(std::is_sorted(options.batch_sizes.begin(), options.batch_sizes.end()));
  CHECK_GE(options.batch_sizes.back(), options.max_batch_size);
  CHECK(options.enable_chunked_prefill || options.max_num_tokens >= options.max_seq_len);
  CHECK(!options.reuse_generated || options.groups.size() == 1 || options.drafter.offer_margin == 0)
      << "windows of the blocks within the margin are passed";
  CHECK_GE(options.drafter.reuse_reserve, 1) << "the last prompt token's logits must be computed";
  CheckGroups();
  SetSpeculation({.draft_len = options.draft_len,
                  .acceptance = options.acceptance,
                  .draft_policy = options.draft_policy});
  MakeRanks();
}

void Scheduler::CheckGroups() const {
  CHECK(!options_.groups.empty());
  const CacheGroupShape& history = options_.groups[kHistoryGroup];
  for (const CacheGroupShape& group : options_.groups) {
    CHECK_EQ(group.is_history(), &group == &history) << "the history is the first group";
    CHECK_EQ(history.tokens_per_block % group.tokens_per_block, 0)
        << "one-writer: " << group.tokens_per_block;
    if (group.is_history()) continue;
    CHECK_GE(group.block_count, options_.MinBlockCount(group)) << "lookback " << group.lookback;
  }
}

void Scheduler::MakeRanks() {
  ranks_.clear();
  constrained_count_ = 0;
  constrained_of_rank_.assign(options_.rank_count, 0);
  for (int rank = 0; rank < options_.rank_count; ++rank) {
    ranks_.emplace_back(options_.groups, options_.max_batch_size);
  }
}

absl::Status Scheduler::Submit(Request request) {
  const int32_t prompt_len = static_cast<int32_t>(request.prompt_ids.size());
  if (absl::Status status = options_.request_size().Check("prompt", prompt_len, request.max_tokens);
      !status.ok()) {
    return status;
  }
  auto owned = std::make_unique<Sequence>();
  Sequence* sequence = owned.get();
  sequence->request = std::move(request);
  sequence->arrival_number = next_arrival_++;
  sequence->prompt_len = prompt_len;
  sequence->length_limit = prompt_len + sequence->request.max_tokens - 1;
  sequence->constraint = SequenceConstraint::Of(sequence->request);
  for (const CacheGroupShape& group : options_.groups) {
    const int positions = OwnPositions(sequence->length_limit, options_.max_draft_len);
    sequence->groups.push_back(
        {.extent = group.DecodeExtent(positions, options_.max_draft_len, options_.drafter.rows_ahead)});
  }
  SetOrder(sequence);
  const bool is_new = sequences_.emplace(sequence->request.id, std::move(owned)).second;
  CHECK(is_new) << "request id " << sequence->request.id << " is in use";
  waiting_.Add(sequence);
  counters_.waiting_prompt_tokens += sequence->prompt_len;
  if (sequence->request.deadline != SteadyTime::max()) {
    deadlines_.emplace(std::make_pair(sequence->request.deadline, sequence->arrival_number), sequence);
  }
  return absl::OkStatus();
}

// With ageing, a priority is worth seconds of arrival, so the order of two requests never changes.
void Scheduler::SetOrder(Sequence* sequence) const {
  const Request& request = sequence->request;
  CHECK_LE(std::abs(request.priority), kMaxPriority) << "request " << request.id;
  if (options_.priority_ageing.count() == 0) {
    sequence->priority_class = request.priority;
    return;
  }
  sequence->queue_time = request.arrival - request.priority * options_.priority_ageing;
}

void Scheduler::Cancel(uint64_t request_id, FinishReason reason) {
  auto found = sequences_.find(request_id);
  if (found == sequences_.end() || found->second->state == SequenceState::kEnded) return;
  End(found->second.get(), reason, absl::OkStatus());
}

void Scheduler::ExpireDeadlines(SteadyTime now) {
  while (!deadlines_.empty() && deadlines_.begin()->first.first <= now) {
    End(deadlines_.begin()->second, FinishReason::kDeadline, absl::OkStatus());
  }
}

void Scheduler::EndAll(FinishReason reason, const absl::Status& error) {
  std::vector<Sequence*> open;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state != SequenceState::kEnded) open.push_back(sequence.get());
  }
  std::sort(open.begin(), open.end(),
            [](const Sequence* a, const Sequence* b) { return a->arrival_number < b->arrival_number; });
  for (Sequence* sequence : open) End(sequence, reason, error);
}

void Scheduler::End(Sequence* sequence, FinishReason reason, const absl::Status& error) {
  CHECK(reason != FinishReason::kNone);
  RequestUpdate& update = updates_.emplace_back();
  update.request_id = sequence->request.id;
  update.finish = reason;
  update.error = error;
  Leave(sequence);
}

void Scheduler::Leave(Sequence* sequence) {
  if (sequence->request.deadline != SteadyTime::max()) {
    deadlines_.erase({sequence->request.deadline, sequence->arrival_number});
  }
  if (sequence->constraint != nullptr && sequence->state != SequenceState::kWaiting) {
    --constrained_count_;
    --constrained_of_rank_[sequence->rank];
  }
  switch (sequence->state) {
    case SequenceState::kWaiting:
      waiting_.Remove(sequence);
      counters_.waiting_prompt_tokens -= sequence->prompt_len;
      break;
    case SequenceState::kPrefilling: {
      RankState& rank = ranks_[sequence->rank];
      rank.prefilling.erase(sequence);
      for (int group = 0; sequence->swappable && group < rank.group_count(); ++group) {
        rank.prefilling_held[group] -= sequence->groups[group].held();
      }
      --running_;
      break;
    }
    case SequenceState::kSwapped: {
      RankState& rank = ranks_[sequence->rank];
      rank.swapped.erase(sequence);
      rank.dropped_images.push_back(sequence->image_id);
      rank.host_reserved -= HostExtent(*sequence);
      break;
    }
    case SequenceState::kDecoding:
      --running_;
      break;
    case SequenceState::kEnded:
      CHECK(false) << "request " << sequence->request.id << " ended twice";
  }
  sequence->state = SequenceState::kEnded;
  sequence->mask_job = nullptr;
  if (sequence->slot >= 0) {  // stream-order
    RankState& rank = ranks_[sequence->rank];
    rank.releases.push_back(sequence->slot);
    rank.Vacate(sequence);
    if (sequence->swappable) {
      rank.host_reserved -= HostExtent(*sequence);
    } else {
      for (int group = 0; group < rank.group_count(); ++group) {
        rank.pool_reserved[group] -= sequence->groups[group].limit;
      }
    }
  }
  ForgetIfUnnamed(sequence);
}

void Scheduler::ForgetIfUnnamed(Sequence* sequence) {
  if (sequence->state != SequenceState::kEnded || sequence->plans_in_flight > 0) return;
  sequences_.erase(sequence->request.id);
}

std::vector<RequestUpdate> Scheduler::TakeUpdates() { return std::exchange(updates_, {}); }

bool Scheduler::HasWork() const {
  if (!sequences_.empty() || !in_flight_.empty()) return true;
  return std::any_of(ranks_.begin(), ranks_.end(), [](const RankState& rank) {
    return !rank.releases.empty() || !rank.dropped_images.empty();
  });
}

void Scheduler::SetSpeculation(const Speculation& speculation) {
  CHECK_GE(speculation.draft_len, 0);
  CHECK_LE(speculation.draft_len, options_.max_draft_len);
  speculation_ = speculation;
  draft_policy_.Change(speculation.draft_len, speculation.draft_policy);
  const bool fixed = speculation.draft_policy.kind == DraftPolicyKind::kFixed;
  last_draft_len_ = fixed ? speculation.draft_len : std::min(last_draft_len_, draft_policy_.upper());
}

SchedulerLoad Scheduler::load() const {
  SchedulerLoad load = counters_;
  load.running = running_;
  load.waiting = waiting_.size();
  load.draft_len = last_draft_len_;
  load.speed_up = draft_policy_.SpeedUp();
  load.calibration_error = draft_policy_.calibration_error();
  load.ranks.reserve(ranks_.size());
  for (const RankState& rank : ranks_) {
    RankLoad& of_rank = load.ranks.emplace_back();
    of_rank = {.running = rank.slots_used() + static_cast<int>(rank.swapped.size()),
               .blocks_used = rank.pool().held_count(),
               .blocks_free = rank.pool().free_count(),
               .blocks_cached = rank.pool().cached_count()};
    for (int group = 0; group < rank.group_count(); ++group) {
      const KvBlockPool& pool = rank.pool(group);
      of_rank.groups.push_back(
          {.used = pool.held_count(), .free = pool.free_count(), .cached = pool.cached_count()});
    }
    for (const Sequence* sequence : rank.prefilling) {
      of_rank.prefill_tokens += sequence->prompt_len - sequence->prompt_planned;
    }
    load.swapped += static_cast<int>(rank.swapped.size());
    load.slots_used += rank.slots_used();
    load.blocks_used += of_rank.blocks_used;
    load.blocks_free += of_rank.blocks_free;
    load.blocks_cached += of_rank.blocks_cached;
  }
  return load;
}

void Scheduler::CheckInvariants() const {
  int64_t waiting_tokens = 0;
  int waiting = 0;
  for (const auto& [id, sequence] : sequences_) {
    if (sequence->state != SequenceState::kWaiting) continue;
    ++waiting;
    waiting_tokens += sequence->prompt_len;
  }
  CHECK_EQ(waiting, waiting_.size());
  CHECK_EQ(waiting_tokens, counters_.waiting_prompt_tokens);
  std::vector<int64_t> host_reserved(ranks_.size());
  std::vector<int> constrained_of_rank(ranks_.size());
  std::vector<CacheGroupCounts> pool_reserved(ranks_.size(), CacheGroupCounts(options_.groups.size()));
  for (const auto& [id, sequence] : sequences_) {
    const bool admitted = sequence->slot >= 0 || sequence->state == SequenceState::kSwapped;
    if (!admitted) continue;
    if (sequence->constraint != nullptr) ++constrained_of_rank[sequence->rank];
    if (sequence->swappable) {
      host_reserved[sequence->rank] += HostExtent(*sequence);
    } else {
      for (size_t group = 0; group < options_.groups.size(); ++group) {
        pool_reserved[sequence->rank][group] += sequence->groups[group].limit;
      }
    }
  }
  CHECK(constrained_of_rank == constrained_of_rank_);
  CHECK_EQ(std::accumulate(constrained_of_rank.begin(), constrained_of_rank.end(), 0), constrained_count_);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    ranks_[rank].CheckInvariants();
    CHECK_EQ(host_reserved[rank], ranks_[rank].host_reserved) << "reservation, rank " << rank;
    CHECK(pool_reserved[rank] == ranks_[rank].pool_reserved) << "reservation, rank " << rank;
    CHECK_LE(host_reserved[rank], options_.host_frame_count) << "reservation, rank " << rank;
  }
}

}  // namespace foredraft
