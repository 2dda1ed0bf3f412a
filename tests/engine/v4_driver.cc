#include "tests/engine/v4_driver.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "tests/engine/drafts_of.h"

namespace foredraft {

V4Driver::V4Driver(RankEngine& engine) : engine_(engine), groups_(engine.rank().cache.shape().groups) {
  for (const int count : engine.rank().cache.shape().block_counts) {
    std::vector<int32_t>& free = free_.emplace_back();
    for (int32_t block = 1; block < count; ++block) free.push_back(block);
  }
}

int32_t V4Driver::Take(int group) {
  std::vector<int32_t>& free = free_[group];
  CHECK(!free.empty()) << groups_[group].name;
  const int32_t block = free.front();
  free.erase(free.begin());
  return block;
}

void V4Driver::GiveBack(int group, int32_t block) { free_[group].push_back(block); }

void V4Driver::Own(Sequence& sequence, int group, int first, int last, RankPlan& plan) {
  std::map<int, int32_t>& blocks = sequence.blocks[group];
  const int tokens = groups_[group].tokens_per_block;
  const int first_index = first / tokens, last_index = last / tokens;
  const auto set = [&](int index, int32_t block) {
    plan.block_table_deltas.push_back(
        {.slot = sequence.slot, .group = group, .first_index = index, .block_ids = {block}});
  };
  for (auto it = blocks.begin(); it != blocks.end();) {
    if (it->first >= first_index && it->first <= last_index) {
      ++it;
      continue;
    }
    set(it->first, kScratchBlock);
    GiveBack(group, it->second);
    blocks_given_back_ += it->first < first_index ? 1 : 0;
    it = blocks.erase(it);
  }
  for (int index = first_index; index <= last_index; ++index) {
    if (blocks.contains(index)) continue;
    blocks[index] = Take(group);
    set(index, blocks[index]);
  }
}

// A window's positions before the chunk and its last ones need memory; the deltas of the two ranges go out
// together, so the blocks between them are unmapped.
void V4Driver::OwnForPlan(Sequence& sequence, int end, int drafted, RankPlan& plan) {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int group = static_cast<int>(g);
    const int lookback = groups_[g].lookback;
    const int last = end + drafted;
    if (groups_[g].is_history()) {
      Own(sequence, group, 0, last, plan);
      continue;
    }
    const int tokens = groups_[g].tokens_per_block;
    const int read_last = sequence.length - 1, kept_first = std::max(0, end - lookback);
    if (kept_first / tokens <= std::max(read_last, 0) / tokens + 1) {
      Own(sequence, group, std::max(0, sequence.length - lookback), last, plan);
      continue;
    }
    // Maps the last range without giving back the first one, which the chunk before this one left.
    if (read_last >= 0) Own(sequence, group, std::max(0, sequence.length - lookback), read_last, plan);
    std::map<int, int32_t> read = std::exchange(sequence.blocks[g], {});
    Own(sequence, group, kept_first, last, plan);
    sequence.blocks[g].merge(read);
    CHECK(read.empty());
  }
}

void V4Driver::OwnAfter(Sequence& sequence) {
  const int rows_ahead = engine_.options().drafter_requirements.rows_ahead;
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int first = groups_[g].is_history() ? 0 : std::max(0, sequence.length - groups_[g].lookback);
    Own(sequence, static_cast<int>(g), first, sequence.length + rows_ahead, pending_);
  }
}

void V4Driver::AddChunk(Sequence& sequence, const DriveSetting& setting, IterationPlan& plan) {
  RankPlan& rank = plan.ranks[0];
  const std::vector<int32_t>& prompt = sequence.request->prompt;
  const int first = sequence.length;
  const int end = std::min(sequence.prompt_len(), first + setting.chunk);
  const bool last = end == sequence.prompt_len();
  OwnForPlan(sequence, end, last ? plan.draft_len + engine_.options().drafter_requirements.rows_ahead : 0,
             rank);
  rank.prefill_chunks.push_back({.slot = sequence.slot,
                                 .first_position = first,
                                 .token_ids = {prompt.begin() + first, prompt.begin() + end},
                                 .last = last});
  plan.prefill_rows[0] += end - first;
  sequence.length = end;
  if (!last) return;
  ++plan.ended_prompts[0];
  sequence.live = true;
  rank.live_slots.push_back(sequence.slot);
}

RankResult V4Driver::Carry(const IterationPlan& plan) {
  auto result = engine_.Run(plan, 0);
  CHECK(result.ok()) << result.status().ToString();
  return *std::move(result);
}

// Out in one plan and, into other blocks, in with the next.
void V4Driver::SwapOutAndIn(Sequence& sequence) {
  const auto blocks_of = [&] {
    std::vector<CacheGroupBlocks> all;
    for (size_t g = 0; g < groups_.size(); ++g) {
      CacheGroupBlocks& group = all.emplace_back(CacheGroupBlocks{.group = static_cast<int32_t>(g)});
      group.first_index = sequence.blocks[g].empty() ? 0 : sequence.blocks[g].begin()->first;
      for (const auto& [index, block] : sequence.blocks[g]) group.block_ids.push_back(block);
    }
    return all;
  };
  const uint64_t image = ++number_;
  IterationPlan out{.number = image, .prefill_rows = {0}, .ended_prompts = {0}, .ranks = {RankPlan{}}};
  out.ranks[0] = std::exchange(pending_, {});
  out.ranks[0].swaps_out = {{.image_id = image, .slot = sequence.slot, .blocks = blocks_of()}};
  Carry(out);
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (auto& [index, block] : sequence.blocks[g]) {
      GiveBack(static_cast<int>(g), block);
      block = Take(static_cast<int>(g));
    }
  }
  IterationPlan in{.number = ++number_, .prefill_rows = {0}, .ended_prompts = {0}, .ranks = {RankPlan{}}};
  in.ranks[0].swaps_in = {{.image_id = image, .slot = sequence.slot, .blocks = blocks_of()}};
  for (const CacheGroupBlocks& group : in.ranks[0].swaps_in[0].blocks) {
    in.ranks[0].block_table_deltas.push_back({.slot = sequence.slot,
                                              .group = group.group,
                                              .first_index = group.first_index,
                                              .block_ids = group.block_ids});
  }
  Carry(in);
  ++swaps_;
}

IterationPlan V4Driver::PlanOf(std::vector<Sequence>& sequences, const DriveSetting& setting) {
  const int rows_ahead = engine_.options().drafter_requirements.rows_ahead;
  const int verify_len = setting.verify_lens[iteration_ % setting.verify_lens.size()];
  IterationPlan plan{.number = ++number_,
                     .draft_len = setting.draft_lens[iteration_++ % setting.draft_lens.size()],
                     .prefill_rows = {0},
                     .ended_prompts = {0},
                     .ranks = {std::exchange(pending_, {})}};
  RankPlan& rank = plan.ranks[0];
  for (Sequence& sequence : sequences) {
    if (sequence.ended) continue;
    if (sequence.live) {
      OwnForPlan(sequence, sequence.length, plan.draft_len + rows_ahead, rank);
      rank.live_slots.push_back(sequence.slot);
    } else {
      AddChunk(sequence, setting, plan);
    }
  }
  if (!rank.live_slots.empty()) {
    const std::vector<int>& sizes = engine_.options().batch_sizes;
    plan.decode_bucket =
        *std::lower_bound(sizes.begin(), sizes.end(), static_cast<int>(rank.live_slots.size()));
    const bool cuts = verify_len > 0 && verify_len < plan.draft_len;
    plan.verify_rows = cuts ? plan.decode_bucket * (verify_len + 1) : 0;
  }
  return plan;
}

void V4Driver::Take(const SlotResult& slot, const DriveSetting& setting, Sequence& sequence, DrivenRun& run) {
  run.tokens.insert(run.tokens.end(), slot.token_ids.begin(), slot.token_ids.end());
  run.accepted += slot.step_token_count() - 1;
  run.rejected += slot.drafts_verified - (slot.step_token_count() - 1);
  run.drafts.push_back({.token_count = static_cast<int>(run.tokens.size()),
                        .drafts = DraftsOf(engine_, slot.slot),
                        .confidences = slot.confidences});
  sequence.length = slot.length;
  sequence.ended = slot.finished;
  ++sequence.steps;
  OwnAfter(sequence);
  if (sequence.ended) {
    pending_.releases.push_back(sequence.slot);
    std::erase_if(pending_.block_table_deltas,
                  [&](const BlockTableDelta& delta) { return delta.slot == sequence.slot; });
    for (size_t g = 0; g < groups_.size(); ++g) {
      for (const auto& [index, block] : sequence.blocks[g]) GiveBack(static_cast<int>(g), block);
    }
  } else if (setting.swap_every > 0 && sequence.steps % setting.swap_every == 0) {
    SwapOutAndIn(sequence);
  }
}

std::vector<DrivenRun> V4Driver::Run(const std::vector<DrivenRequest>& requests,
                                     const DriveSetting& setting) {
  std::vector<DrivenRun> runs(requests.size());
  std::vector<Sequence> sequences(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    sequences[i].request = &requests[i];
    sequences[i].slot = static_cast<int>(i);
    sequences[i].blocks.resize(groups_.size());
    pending_.admissions.push_back({.slot = sequences[i].slot,
                                   .sampling = requests[i].sampling,
                                   .draft_cap = engine_.options().max_draft_len,
                                   .prompt_len = sequences[i].prompt_len(),
                                   .length_limit = sequences[i].limit()});
  }
  const auto ended = [](const Sequence& sequence) { return sequence.ended; };
  while (!std::all_of(sequences.begin(), sequences.end(), ended)) {
    for (const SlotResult& slot : Carry(PlanOf(sequences, setting)).slots) {
      Take(slot, setting, sequences[slot.slot], runs[slot.slot]);
    }
  }
  Carry(PlanOf(sequences, setting));  // the releases
  return runs;
}

}  // namespace foredraft
