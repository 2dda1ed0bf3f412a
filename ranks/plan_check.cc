#include "ranks/plan_check.h"

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/slot_arrays.h"
#include "ranks/mask_check.h"
#include "ranks/range_check.h"

namespace foredraft {
namespace {

constexpr int kMostLogprobs = 20;
constexpr int kMostRelaxedIds = 64;

// NaN is outside.
absl::Status CheckReal(absl::string_view field, double value, double lowest, double highest) {
  if (value >= lowest && value <= highest) return absl::OkStatus();
  return RefuseField(field, value, absl::StrFormat("%g..%g", lowest, highest));
}

absl::Status CheckSampling(const SamplingParams& sampling, int vocab_size) {
  RETURN_IF_ERROR(CheckReal("temperature", sampling.temperature, 0, 100));
  RETURN_IF_ERROR(CheckReal("top_p", sampling.top_p, 0, 1));
  RETURN_IF_ERROR(CheckRange("top_k", sampling.top_k, 0, vocab_size));
  RETURN_IF_ERROR(CheckReal("min_p", sampling.min_p, 0, 1));
  RETURN_IF_ERROR(CheckReal("repetition_penalty", sampling.repetition_penalty, 0, 100));
  RETURN_IF_ERROR(CheckReal("presence_penalty", sampling.presence_penalty, -2, 2));
  RETURN_IF_ERROR(CheckReal("frequency_penalty", sampling.frequency_penalty, -2, 2));
  RETURN_IF_ERROR(CheckRange("logit_bias", sampling.logit_bias.size(), 0, kMaxLogitBiases));
  int lowest = 0;  // ids ascend
  for (const TokenBias& bias : sampling.logit_bias) {
    RETURN_IF_ERROR(CheckRange("logit_bias.token_id", bias.token_id, lowest, vocab_size - 1));
    RETURN_IF_ERROR(CheckReal("logit_bias.bias", bias.bias, -100, 100));
    lowest = bias.token_id + 1;
  }
  return absl::OkStatus();
}

}  // namespace

PlanCheck::PlanCheck(SchedulerOptions options, int rank, int vocab_size)
    : options_(std::move(options)), rank_(rank), vocab_size_(vocab_size), slots_(options_.max_batch_size) {
  for (size_t group = 0; group < options_.groups.size(); ++group) {
    tables_.emplace_back(slots_.size(),
                         std::vector<int32_t>(Entries(static_cast<int>(group)), kScratchBlock));
  }
}

absl::Status PlanCheck::Check(const IterationPlan& plan) {
  if (plan.number == 1) {
    // A new scheduler, whose first plans need not release what the warm-up's left.
    std::fill(slots_.begin(), slots_.end(), 0);
  } else if (plan.number != number_ + 1) {
    return RefuseField("number", plan.number, absl::StrCat(number_ + 1, ", 1"));
  }
  number_ = plan.number;
  RETURN_IF_ERROR(CheckGroup(plan));
  const RankPlan& rank = plan.ranks[rank_];
  RETURN_IF_ERROR(CheckImages(rank));
  for (const SlotAdmission& admission : rank.admissions) RETURN_IF_ERROR(CheckAdmission(admission));
  for (const BlockTableDelta& delta : rank.block_table_deltas) {
    RETURN_IF_ERROR(CheckDelta(delta));
    std::copy(delta.block_ids.begin(), delta.block_ids.end(),
              tables_[delta.group][delta.slot].begin() + delta.first_index);
  }
  RETURN_IF_ERROR(CheckPrefill(plan));
  return CheckDecode(plan);
}

// Checks the fields that all ranks share.
absl::Status PlanCheck::CheckGroup(const IterationPlan& plan) const {
  const int64_t ranks = options_.rank_count;
  RETURN_IF_ERROR(CheckRange("draft_len", plan.draft_len, 0, options_.max_draft_len));
  RETURN_IF_ERROR(CheckRange("relaxed_topk", plan.acceptance.relaxed_topk, 0, kMostRelaxedIds));
  RETURN_IF_ERROR(CheckReal("relaxed_delta", plan.acceptance.relaxed_delta, 0, 1));
  RETURN_IF_ERROR(CheckReal("forced_length", plan.acceptance.forced_length, 0, kMaxDraftLen + 1));
  RETURN_IF_ERROR(CheckCut(plan));
  const std::vector<int>& buckets = options_.batch_sizes;
  if (plan.decode_bucket != 0 &&
      std::find(buckets.begin(), buckets.end(), plan.decode_bucket) == buckets.end())
    return RefuseField("decode_bucket", plan.decode_bucket, "0 or one of batch_sizes");
  RETURN_IF_ERROR(CheckRange("prefill_rows size", plan.prefill_rows.size(), ranks, ranks));
  RETURN_IF_ERROR(CheckRange("ended_prompts size", plan.ended_prompts.size(), ranks, ranks));
  for (int r = 0; r < options_.rank_count; ++r) {
    RETURN_IF_ERROR(CheckRange("prefill_rows", plan.prefill_rows[r], 0, options_.max_num_tokens));
    RETURN_IF_ERROR(CheckRange("ended_prompts", plan.ended_prompts[r], 0,
                               std::min(plan.prefill_rows[r], options_.max_batch_size)));
  }
  return absl::OkStatus();
}

absl::Status PlanCheck::CheckCut(const IterationPlan& plan) const {
  RETURN_IF_ERROR(CheckRange("calibration size", plan.calibration.size(), 0, options_.max_draft_len));
  for (const DraftCalibration& draft : plan.calibration) {
    RETURN_IF_ERROR(CheckReal("calibration.slope", draft.slope, 0, kLargestConfidence));
    RETURN_IF_ERROR(CheckReal("calibration.offset", draft.offset, -kLargestConfidence, kLargestConfidence));
  }
  if (plan.verify_rows == 0) return absl::OkStatus();
  const bool cuts = options_.draft_policy.kind == DraftPolicyKind::kConfidence;
  const bool gives = !plan.ranks[rank_].given_tokens.empty();
  if (!cuts || gives || plan.decode_bucket == 0) return RefuseField("verify_rows", plan.verify_rows, "0");
  for (int verified = 1; verified < plan.draft_len; ++verified) {
    if (plan.verify_rows == int64_t{plan.decode_bucket} * (verified + 1)) return absl::OkStatus();
  }
  return RefuseField("verify_rows", plan.verify_rows, "0, or decode_bucket times 2..draft_len");
}

// taken: the slot must have a sequence; else it must have none.
absl::Status PlanCheck::CheckSlot(const char* field, int32_t slot, bool taken) const {
  RETURN_IF_ERROR(CheckRange(field, slot, 0, options_.max_batch_size - 1));
  if ((slots_[slot] != 0) == taken) return absl::OkStatus();
  return RefuseField(field, slot, taken ? "slots that have a sequence" : "slots without a sequence");
}

absl::Status PlanCheck::CheckIds(const char* field, const std::vector<int32_t>& ids) const {
  for (const int32_t id : ids) RETURN_IF_ERROR(CheckRange(field, id, 0, vocab_size_ - 1));
  return absl::OkStatus();
}

// `blocks` has an element for every group in order, with ids of blocks other than scratch.
absl::Status PlanCheck::CheckBlocks(const char* field, const std::vector<CacheGroupBlocks>& blocks) const {
  const int64_t groups = options_.groups.size();
  RETURN_IF_ERROR(CheckRange(absl::StrCat(field, ".blocks size"), blocks.size(), groups, groups));
  for (int64_t g = 0; g < groups; ++g) {
    RETURN_IF_ERROR(CheckRange(absl::StrCat(field, ".blocks.group"), blocks[g].group, g, g));
    RETURN_IF_ERROR(CheckDelta({.slot = 0,
                                .group = blocks[g].group,
                                .first_index = blocks[g].first_index,
                                .block_ids = blocks[g].block_ids}));
    const auto& ids = blocks[g].block_ids;
    if (std::find(ids.begin(), ids.end(), kScratchBlock) != ids.end())
      return RefuseField(absl::StrCat(field, ".blocks.block_ids"), kScratchBlock,
                         "blocks with a sequence's rows");
  }
  return absl::OkStatus();
}

absl::Status PlanCheck::CheckImages(const RankPlan& plan) {
  const auto find = [this](const char* field, uint64_t id, auto& found) -> absl::Status {
    found = images_.find(id);
    return found != images_.end() ? absl::OkStatus() : RefuseField(field, id, "images that exist");
  };
  auto image = images_.end();
  for (const uint64_t id : plan.dropped_images) {
    RETURN_IF_ERROR(find("dropped_images", id, image));
    used_frames_ -= image->second.frames;
    sequences_.erase(image->second.sequence);
    images_.erase(image);
  }
  for (const int32_t slot : plan.releases) {
    RETURN_IF_ERROR(CheckSlot("releases", slot, /*taken=*/true));
    sequences_.erase(slots_[slot]);
    Clear(slot);
  }
  for (const SwapOut& swap : plan.swaps_out) {
    RETURN_IF_ERROR(CheckSlot("swaps_out.slot", swap.slot, /*taken=*/true));
    RETURN_IF_ERROR(CheckBlocks("swaps_out", swap.blocks));
    if (images_.contains(swap.image_id)) return RefuseField("swaps_out.image_id", swap.image_id, "a new one");
    Image stored{.sequence = slots_[swap.slot], .block_counts = {}, .frames = options_.host_image_frames};
    for (const CacheGroupBlocks& blocks : swap.blocks) {
      stored.block_counts.push_back(static_cast<int>(blocks.block_ids.size()));
      stored.frames +=
          int64_t{options_.groups[blocks.group].host_frames_per_block} * stored.block_counts.back();
    }
    used_frames_ += stored.frames;
    RETURN_IF_ERROR(
        CheckRange("swaps_out: frames of the host store", used_frames_, 0, options_.host_frame_count));
    Clear(swap.slot);
    images_.emplace(swap.image_id, std::move(stored));
  }
  for (const SwapIn& swap : plan.swaps_in) {
    RETURN_IF_ERROR(find("swaps_in.image_id", swap.image_id, image));
    RETURN_IF_ERROR(CheckSlot("swaps_in.slot", swap.slot, /*taken=*/false));
    RETURN_IF_ERROR(CheckBlocks("swaps_in", swap.blocks));
    for (const CacheGroupBlocks& blocks : swap.blocks) {
      const int64_t count = image->second.block_counts[blocks.group];
      RETURN_IF_ERROR(CheckRange("swaps_in.blocks.block_ids size", blocks.block_ids.size(), count, count));
    }
    slots_[swap.slot] = image->second.sequence;
    used_frames_ -= image->second.frames;
    images_.erase(image);
  }
  return absl::OkStatus();
}

absl::Status PlanCheck::CheckAdmission(const SlotAdmission& a) {
  RETURN_IF_ERROR(CheckSlot("admissions.slot", a.slot, /*taken=*/false));
  RETURN_IF_ERROR(CheckSampling(a.sampling, vocab_size_));
  RETURN_IF_ERROR(CheckRange("logprob_count", a.logprob_count, -1, kMostLogprobs));
  RETURN_IF_ERROR(CheckRange("phase", static_cast<int>(a.phase), 0, 1));
  RETURN_IF_ERROR(CheckRange("thinking.begin", a.thinking.begin, -1, vocab_size_ - 1));
  RETURN_IF_ERROR(CheckRange("thinking.end", a.thinking.end, -1, vocab_size_ - 1));
  RETURN_IF_ERROR(CheckRange("draft_cap", a.draft_cap, 0, options_.max_draft_len));
  RETURN_IF_ERROR(CheckRange("prompt_len", a.prompt_len, 1, options_.max_seq_len - 1));
  RETURN_IF_ERROR(CheckRange("length_limit", a.length_limit, a.prompt_len, options_.max_seq_len - 1));
  RETURN_IF_ERROR(CheckRange("min_tokens", a.sampling.min_tokens, 0, a.length_limit - a.prompt_len + 1));
  RETURN_IF_ERROR(CheckRange("stop_ids size", a.stop_ids.size(), 0, kMaxStopIds));
  RETURN_IF_ERROR(CheckIds("stop_ids", a.stop_ids));
  const int most_reused = std::max(0, a.prompt_len - options_.drafter.reuse_reserve);
  RETURN_IF_ERROR(CheckRange("reused_len", a.reused_len, 0, most_reused));
  for (const CacheGroupShape& group : options_.groups) {
    if (a.reused_len % group.tokens_per_block != 0)
      return RefuseField("reused_len", a.reused_len, "whole blocks");
  }
  const bool reuses = a.reused_len > 0;
  RETURN_IF_ERROR(CheckRange("boundary_block", a.boundary_block, reuses ? 1 : -1,
                             reuses ? options_.groups[kHistoryGroup].block_count - 1 : -1));
  const int64_t counted = a.sampling.counts_tokens() ? a.reused_len : 0;
  RETURN_IF_ERROR(CheckRange("reused_ids size", a.reused_ids.size(), counted, counted));
  RETURN_IF_ERROR(CheckIds("reused_ids", a.reused_ids));
  RETURN_IF_ERROR(CheckRange("gate.first", static_cast<int>(a.gate.first), 0, 2));
  RETURN_IF_ERROR(CheckRange("gate.trigger_ids size", a.gate.trigger_ids.size(), 0, kMaxGateTriggers));
  RETURN_IF_ERROR(CheckIds("gate.trigger_ids", a.gate.trigger_ids));
  RETURN_IF_ERROR(CheckRange("gate.barred_stop_count", a.gate.barred_stop_count, 0, a.stop_ids.size()));
  slots_[a.slot] = next_sequence_++;
  sequences_[slots_[a.slot]] = {.prompt_len = a.prompt_len,
                                .prefilled = a.reused_len,
                                .length_limit = a.length_limit,
                                .gate = a.gate,
                                .thinking = a.thinking,
                                .gate_now = a.gate.first};
  return absl::OkStatus();
}

absl::Status PlanCheck::CheckDelta(const BlockTableDelta& delta) const {
  RETURN_IF_ERROR(CheckRange("block table: slot", delta.slot, 0, options_.max_batch_size - 1));
  RETURN_IF_ERROR(CheckRange("block table: group", delta.group, 0, options_.groups.size() - 1));
  const CacheGroupShape& group = options_.groups[delta.group];
  const int entries = Entries(delta.group);
  RETURN_IF_ERROR(CheckRange("block table: first_index", delta.first_index, 0, entries));
  RETURN_IF_ERROR(CheckRange("block table: blocks", delta.block_ids.size(), 0, entries - delta.first_index));
  for (const int32_t block : delta.block_ids)
    RETURN_IF_ERROR(CheckRange("block table: block_ids", block, 0, group.block_count - 1));
  return absl::OkStatus();
}

absl::Status PlanCheck::CheckPrefill(const IterationPlan& plan) {
  const RankPlan& rank = plan.ranks[rank_];
  int64_t rows = 0;
  int ended = 0;
  for (const PrefillChunk& chunk : rank.prefill_chunks) {
    RETURN_IF_ERROR(CheckSlot("prefill_chunks.slot", chunk.slot, /*taken=*/true));
    Sequence& sequence = sequence_of(chunk.slot);
    const int64_t count = chunk.token_ids.size();
    RETURN_IF_ERROR(CheckRange("prefill_chunks.first_position", chunk.first_position, sequence.prefilled,
                               sequence.prefilled));
    RETURN_IF_ERROR(
        CheckRange("prefill_chunks.token_ids size", count, 1, sequence.prompt_len - sequence.prefilled));
    RETURN_IF_ERROR(CheckIds("prefill_chunks.token_ids", chunk.token_ids));
    RETURN_IF_ERROR(CheckMapped("prefill_chunks.slot", chunk.slot, chunk.first_position, chunk.first_position,
                                chunk.first_position + static_cast<int>(count)));
    sequence.prefilled += static_cast<int32_t>(count);
    sequence.length = sequence.prompt_len;
    if (chunk.last != sequence.prompt_ended())
      return RefuseField("prefill_chunks.last", chunk.last, "at a prompt's end");
    if (chunk.last &&
        std::find(rank.live_slots.begin(), rank.live_slots.end(), chunk.slot) == rank.live_slots.end())
      return RefuseField("prefill_chunks.slot", chunk.slot, "live slots where the prompt ends");
    rows += count;
    ended += chunk.last ? 1 : 0;
  }
  RETURN_IF_ERROR(CheckRange("prefill_rows of this rank", plan.prefill_rows[rank_], rows, rows));
  return CheckRange("ended_prompts of this rank", plan.ended_prompts[rank_], ended, ended);
}

absl::Status PlanCheck::CheckDecode(const IterationPlan& plan) {
  const RankPlan& rank = plan.ranks[rank_];
  RETURN_IF_ERROR(CheckRange("live_slots size", rank.live_slots.size(), 0, plan.decode_bucket));
  RETURN_IF_ERROR(CheckGiven(plan));
  Launched launched;
  for (const int32_t slot : rank.live_slots) {
    RETURN_IF_ERROR(CheckSlot("live_slots", slot, /*taken=*/true));
    Sequence& sequence = sequence_of(slot);
    if (!sequence.prompt_ended()) return RefuseField("live_slots", slot, "slots whose prompt has ended");
    const bool twice = std::any_of(launched.live.begin(), launched.live.end(),
                                   [&](const LaunchedSlot& live) { return live.slot == slot; });
    if (twice) return RefuseField("live_slots", slot, "every slot once");
    const LaunchedSlot live = LaunchedSlotOf(plan, slot);
    if (!sequence.finished && live.growth > 0) {
      const int longest = std::min(sequence.length + sequence.growth, sequence.length_limit);
      const int end = longest + plan.draft_len + options_.drafter.rows_ahead + 1;
      RETURN_IF_ERROR(CheckMapped("live_slots", slot, sequence.length + sequence.steps, end, end));
    }
    sequence.steps += live.growth > 0 ? 1 : 0;
    sequence.growth += live.growth;
    launched.live.push_back(live);
  }
  launched_.push_back(std::move(launched));
  return CheckMasked(plan);
}

PlanCheck::LaunchedSlot PlanCheck::LaunchedSlotOf(const IterationPlan& plan, int32_t slot) const {
  const RankPlan& rank = plan.ranks[rank_];
  LaunchedSlot live{.slot = slot, .sequence = slots_[slot], .growth = plan.draft_len + 1};
  for (const GivenTokens& given : rank.given_tokens) live.is_sure |= given.slot == slot;
  for (const SlotMasks& masks : rank.slot_masks) {
    if (masks.slot != slot || live.is_sure) continue;
    live.is_sure = !masks.mask_indices.empty();
    if (!live.is_sure) live.growth = 0;
  }
  return live;
}

absl::Status PlanCheck::CheckMasked(const IterationPlan& plan) {
  const int bucket = options_.batch_sizes.back();
  const MaskLimits limits = {.vocab_size = vocab_size_,
                             .draft_len = plan.draft_len,
                             .most_masks = int64_t{bucket} * (options_.max_draft_len + 2),
                             .most_forced_drafts = options_.drafter.forced_limit()};
  return CheckMasks(plan.ranks[rank_], limits,
                    [this](int32_t slot) -> const SlotGate& { return sequence_of(slot).gate; });
}

absl::Status PlanCheck::CheckGiven(const IterationPlan& plan) const {
  const RankPlan& rank = plan.ranks[rank_];
  std::set<int32_t> live(rank.live_slots.begin(), rank.live_slots.end());
  const int most = std::min(plan.draft_len + 1, options_.drafter.given_limit);
  for (const GivenTokens& given : rank.given_tokens) {
    if (live.erase(given.slot) == 0)
      return RefuseField("given_tokens.slot", given.slot, "live slots, each once");
    RETURN_IF_ERROR(CheckRange("given_tokens.token_ids size", given.token_ids.size(), 1, most));
    RETURN_IF_ERROR(CheckIds("given_tokens.token_ids", given.token_ids));
  }
  return absl::OkStatus();
}

absl::Status PlanCheck::CheckMapped(const char* field, int32_t slot, int first, int end,
                                    int history_end) const {
  for (size_t g = 0; g < tables_.size(); ++g) {
    const CacheGroupShape& group = options_.groups[g];
    const std::vector<int32_t>& table = tables_[g][slot];
    const int last =
        std::min(group.BlocksFor(group.is_history() ? history_end : end), Entries(static_cast<int>(g)));
    for (int index = group.FirstIndex(first); index < last; ++index) {
      if (table[index] == kScratchBlock) {
        return RefuseField(field, slot, absl::StrFormat("slots with a block %d in group %d", index, g));
      }
    }
  }
  return absl::OkStatus();
}

int PlanCheck::Entries(int group) const {
  return options_.groups[group].BlocksFor(options_.max_seq_len + options_.max_draft_len +
                                          options_.drafter.rows_ahead);
}

void PlanCheck::Clear(int32_t slot) {
  slots_[slot] = 0;
  for (auto& tables : tables_) std::fill(tables[slot].begin(), tables[slot].end(), kScratchBlock);
}

void PlanCheck::Note(const RankResult& result) {
  if (launched_.empty()) return;
  const Launched launched = std::move(launched_.front());
  launched_.pop_front();
  for (size_t i = 0; i < std::min(launched.live.size(), result.slots.size()); ++i) {
    const LaunchedSlot& live = launched.live[i];
    const auto found = sequences_.find(live.sequence);
    if (found == sequences_.end()) continue;
    Sequence& sequence = found->second;
    sequence.length = result.slots[i].length;
    sequence.finished |= result.slots[i].finished || result.slots[i].nonfinite_logits;
    sequence.steps -= live.growth > 0 ? 1 : 0;
    sequence.growth -= live.growth;
    if (sequence.gate.constrained) NoteGate(live.sequence, sequence, result.slots[i]);
  }
}

void PlanCheck::NoteGate(uint64_t id, Sequence& sequence, const SlotResult& result) {
  const Gate before = sequence.gate_now;
  for (size_t i = 0; i < result.token_ids.size(); ++i) {
    sequence.gate_now = sequence.gate.After(sequence.gate_now, result.token_ids[i],
                                            i == 0 && result.first_token, sequence.thinking);
  }
  if (before == Gate::kBehind || sequence.gate_now != Gate::kBehind) return;
  for (Launched& launched : launched_) {
    for (LaunchedSlot& live : launched.live) {
      if (live.sequence != id || live.is_sure || live.growth == 0) continue;
      --sequence.steps;
      sequence.growth -= std::exchange(live.growth, 0);
    }
  }
}

absl::Status CheckedExecutor::Launch(const IterationPlan& plan) {
  std::lock_guard<std::mutex> lock(mutex_);
  RETURN_IF_ERROR(refused_);
  if (in_flight_ == kMaxPlansInFlight) {
    refused_ =
        RefuseField("plans without a result", in_flight_ + 1, absl::StrCat("at most ", kMaxPlansInFlight));
  } else {
    refused_ = check_.Check(plan);
  }
  if (!refused_.ok()) {
    refused_ = absl::InvalidArgumentError(
        absl::StrCat("the leader sent a plan that this rank cannot carry out: ", refused_.message()));
    return refused_;
  }
  ++in_flight_;
  return executor_.Launch(plan);
}

absl::StatusOr<RankResult> CheckedExecutor::Collect() {
  absl::StatusOr<RankResult> result = executor_.Collect();
  std::lock_guard<std::mutex> lock(mutex_);
  --in_flight_;
  if (result.ok()) check_.Note(*result);
  return result;
}

}  // namespace foredraft
