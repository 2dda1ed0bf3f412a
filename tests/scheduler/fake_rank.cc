#include "tests/scheduler/fake_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 40;
constexpr uint64_t kJunk = 1;  // written, but no later step may read it

// The hash that a row holds; never poison or junk.
uint64_t Tag(uint64_t a, uint64_t b) { return Mix(a, b) | 2; }

}  // namespace

int32_t ScriptedToken(uint64_t seed, int position) {
  return static_cast<int32_t>((Mix(seed, position) >> 8) % kVocabSize);
}

FakeRank::FakeRank(const FakeRankOptions& options,
                   std::function<const std::vector<int32_t>&(uint64_t seed)> prompt_of)
    : StubRank(options.rank, options.scheduler.max_batch_size, options.scheduler.max_draft_len),
      options_(options),
      prompt_of_(std::move(prompt_of)),
      sequences_(options.scheduler.max_batch_size) {
  const SchedulerOptions& scheduler = options.scheduler;
  const int positions = scheduler.max_seq_len + scheduler.max_draft_len + scheduler.drafter.rows_ahead;
  for (const CacheGroupShape& group : scheduler.groups) {
    const int entries = (positions + group.tokens_per_block - 1) / group.tokens_per_block;
    tables_.emplace_back(scheduler.max_batch_size, std::vector<int32_t>(entries, kScratchBlock));
    kept_.emplace_back(scheduler.max_batch_size);
    blocks_.emplace_back(group.block_count);
    for (Block& block : blocks_.back()) block.rows.resize(group.tokens_per_block);
  }
}

int64_t FakeRank::HostFrames(const Image& image) const {
  int64_t frames = options_.scheduler.host_image_frames;
  for (int group = 0; group < group_count(); ++group) {
    frames += static_cast<int64_t>(image.blocks[group].size()) * shape(group).host_frames_per_block;
  }
  return frames;
}

void FakeRank::Fault(const std::string& text) {
  if (faults_.size() < 5) {
    faults_.push_back(absl::StrCat("rank ", options_.rank, ", iteration ", number_, ": ", text));
  }
}

int FakeRank::relaxed_drafts(uint64_t seed) const {
  auto found = relaxed_drafts_.find(seed);
  return found == relaxed_drafts_.end() ? 0 : found->second;
}

bool FakeRank::IsBare() const {
  if (std::any_of(sequences_.begin(), sequences_.end(), [](const Sequence& s) { return s.active; }))
    return false;
  for (const auto& tables : tables_) {
    for (const std::vector<int32_t>& table : tables) {
      if (std::any_of(table.begin(), table.end(), [](int32_t block) { return block != 0; })) return false;
    }
  }
  return images_.empty() && uncollected_count() == 0;
}

absl::Status FakeRank::Launch(const IterationPlan& plan) {
  if (plan.number != number_ + 1) Fault(absl::StrCat("plan ", plan.number, " out of order"));
  number_ = plan.number;
  if (uncollected_count() >= 2) Fault("more than two plans in flight");
  const RankPlan& rank = plan.ranks[options_.rank];
  TakeOut(rank);
  TakeIn(rank);
  ApplyDeltas(rank);

  int rows = 0;
  std::vector<int32_t> ended_prompts;
  for (const PrefillChunk& chunk : rank.prefill_chunks) {
    Prefill(chunk);
    rows += static_cast<int>(chunk.token_ids.size());
    if (chunk.last) ended_prompts.push_back(chunk.slot);
  }
  if (rows != plan.prefill_rows[options_.rank]) Fault("prefill_rows do not match the chunks");
  if (static_cast<int>(ended_prompts.size()) != plan.ended_prompts[options_.rank])
    Fault("ended_prompts do not match the chunks");
  if (rows > options_.scheduler.max_num_tokens) Fault("prefill budget exceeded");
  if (static_cast<int>(rank.live_slots.size()) > plan.decode_bucket) Fault("more live slots than the bucket");
  for (int32_t slot : ended_prompts) {
    if (std::count(rank.live_slots.begin(), rank.live_slots.end(), slot) == 0)
      Fault(absl::StrCat("slot ", slot, ": prompt ended, but it is not live"));
  }
  largest_live_cap_ = 0;
  for (int32_t slot : rank.live_slots) {
    if (!sequences_[slot].prompt_ended) Fault(absl::StrCat("live slot ", slot, " has no sequence"));
    largest_live_cap_ = std::max(largest_live_cap_, sequences_[slot].admission.draft_cap);
  }
  for (const GivenTokens& given : rank.given_tokens) {  // fill the rows of drafts, whatever the cap
    if (std::count(rank.live_slots.begin(), rank.live_slots.end(), given.slot) == 0)
      Fault(absl::StrCat("given tokens for slot ", given.slot, ", which is not live"));
    if (given.token_ids.empty() || static_cast<int>(given.token_ids.size()) > plan.draft_len + 1)
      Fault(absl::StrCat("slot ", given.slot, ": ", given.token_ids.size(), " given tokens"));
    largest_live_cap_ = options_.scheduler.max_draft_len;
  }
  for (const SlotMasks& masks : rank.slot_masks) {
    if (static_cast<int>(masks.forced_drafts.size()) > options_.scheduler.drafter.forced_limit())
      Fault(absl::StrCat("slot ", masks.slot, ": ", masks.forced_drafts.size(), " forced drafts"));
  }
  // A draft costs more in a larger bucket.
  const int cost = 8 + plan.decode_bucket * plan.decode_bucket * plan.draft_len;
  const double hiccup = 1 + static_cast<double>(Mix(plan.number, options_.rank) % 100) / 500;
  decode_seconds_ = plan.decode_bucket > 0 ? 1e-3 * cost * hiccup : 0;
  return StubRank::Launch(plan);
}

void FakeRank::TakeOut(const RankPlan& plan) {
  for (int32_t slot : plan.releases) {
    if (!sequences_[slot].active) Fault(absl::StrCat("release of idle slot ", slot));
    sequences_[slot] = {};
  }
  for (uint64_t image : plan.dropped_images) {
    auto found = images_.find(image);
    if (found == images_.end()) {
      Fault(absl::StrCat("drop of unknown image ", image));
      continue;
    }
    image_frames_ -= HostFrames(found->second);
    images_.erase(found);
  }
  for (const SwapOut& swap : plan.swaps_out) {
    Sequence& sequence = sequences_[swap.slot];
    if (!sequence.prompt_ended) Fault(absl::StrCat("swap out of slot ", swap.slot));
    if (images_.contains(swap.image_id)) Fault(absl::StrCat("image id ", swap.image_id, " used twice"));
    if (static_cast<int>(swap.blocks.size()) != group_count()) return Fault("swap out lacks a group");
    Image& image = images_[swap.image_id];
    for (int group = 0; group < group_count(); ++group) {
      const CacheGroupBlocks& blocks = swap.blocks[group];
      if (blocks.group != group) Fault("swap out: order of groups");
      image.first_index.push_back(blocks.first_index);
      image.blocks.emplace_back();
      for (size_t i = 0; i < blocks.block_ids.size(); ++i) {
        const int32_t block = blocks.block_ids[i];
        if (block == kScratchBlock || tables_[group][swap.slot][blocks.first_index + i] != block)
          Fault("swap out names a block that is not the slot's");
        image.blocks[group].push_back(blocks_[group][block]);
      }
    }
    image.sequence = std::exchange(sequence, {});
    image_frames_ += HostFrames(image);
    if (image_frames_ > options_.scheduler.host_frame_count) Fault("host store overflows");
  }
}

void FakeRank::TakeIn(const RankPlan& plan) {
  for (auto& kept : kept_) std::fill(kept.begin(), kept.end(), Entries());
  for (const SwapIn& swap : plan.swaps_in) {
    auto found = images_.find(swap.image_id);
    if (found == images_.end() || static_cast<int>(swap.blocks.size()) != group_count()) {
      Fault(absl::StrCat("swap in of image ", swap.image_id));
      continue;
    }
    if (sequences_[swap.slot].active) Fault(absl::StrCat("swap into busy slot ", swap.slot));
    const Image& image = found->second;
    for (int group = 0; group < group_count(); ++group) {
      const CacheGroupBlocks& blocks = swap.blocks[group];
      if (blocks.group != group || blocks.first_index != image.first_index[group] ||
          blocks.block_ids.size() != image.blocks[group].size()) {
        return Fault(absl::StrCat("swap in of image ", swap.image_id, ", group ", group));
      }
      for (size_t i = 0; i < blocks.block_ids.size(); ++i) {
        Block& block = blocks_[group][blocks.block_ids[i]];
        block.rows = image.blocks[group][i].rows;
        block.read_only = false;
      }
      kept_[group][swap.slot] = {blocks.first_index,
                                 blocks.first_index + static_cast<int>(blocks.block_ids.size())};
    }
    sequences_[swap.slot] = std::move(found->second.sequence);
    image_frames_ -= HostFrames(found->second);
    images_.erase(found);
  }
  for (const SlotAdmission& admission : plan.admissions) {
    Sequence& sequence = sequences_[admission.slot];
    if (sequence.active) Fault(absl::StrCat("admission to busy slot ", admission.slot));
    sequence = {.active = true, .admission = admission, .prefilled = admission.reused_len};
    sequence.phase = admission.phase;
    const std::vector<int32_t>& prompt = prompt_of_(admission.sampling.seed);
    if (static_cast<int>(prompt.size()) != admission.prompt_len) Fault("prompt_len");
    for (int i = 0; i < admission.reused_len; ++i) Append(&sequence, prompt[i]);
    const bool wants_ids = admission.sampling.counts_tokens();
    if (wants_ids ? admission.reused_ids != sequence.tokens : !admission.reused_ids.empty())
      Fault("reused_ids");
    for (int group = 0; group < group_count(); ++group) {
      const int size = shape(group).tokens_per_block;
      if (admission.reused_len % size != 0) Fault("reused_len is inside a block");
      kept_[group][admission.slot] = {FirstRead(group, admission.reused_len) / size,
                                      admission.reused_len / size};
    }
  }
}

void FakeRank::ApplyDeltas(const RankPlan& plan) {
  struct Entry {
    int group, slot, index;
  };
  std::vector<Entry> fresh;
  std::vector<bool> renewed(sequences_.size());  // the slot has another sequence than before
  for (const SwapIn& swap : plan.swaps_in) renewed[swap.slot] = true;
  for (const SlotAdmission& admission : plan.admissions) renewed[admission.slot] = true;
  for (const BlockTableDelta& delta : plan.block_table_deltas) {
    std::vector<int32_t>& table = tables_[delta.group][delta.slot];
    if (delta.first_index < 0 || delta.first_index + delta.block_ids.size() > table.size()) {
      Fault(absl::StrCat("delta past the table of slot ", delta.slot));
      continue;
    }
    const Entries& kept = kept_[delta.group][delta.slot];
    for (size_t i = 0; i < delta.block_ids.size(); ++i) {
      const int index = delta.first_index + static_cast<int>(i);
      const int32_t block = delta.block_ids[i];
      // A delta of a window may repeat entries; one of the history starts at the first that changes.
      const bool repeats = table[index] == block && delta.group != kHistoryGroup && !renewed[delta.slot];
      if (table[index] != kScratchBlock) --blocks_[delta.group][table[index]].map_count;
      table[index] = block;
      if (block == kScratchBlock) continue;
      ++blocks_[delta.group][block].map_count;
      if ((index < kept.first || index >= kept.end) && !repeats)
        fresh.push_back({delta.group, delta.slot, index});
    }
  }
  for (const auto& [group, slot, index] : fresh) {
    const int32_t id = tables_[group][slot][index];
    Block& block = blocks_[group][id];
    if (block.map_count != 1) {
      Fault(absl::StrCat("block ", id, " of group ", group, " handed to slot ", slot,
                         " while mapped elsewhere"));
    }
    std::fill(block.rows.begin(), block.rows.end(), Row());
    block.boundary = 0;
    block.read_only = false;
  }
  CheckBoundaries(plan);
  for (const auto& tables : tables_) {
    for (size_t slot = 0; slot < sequences_.size(); ++slot) {
      if (!sequences_[slot].active && tables[slot] != std::vector<int32_t>(tables[slot].size())) {
        Fault(absl::StrCat("table of idle slot ", slot, " is not clear"));
      }
    }
  }
}

void FakeRank::CheckBoundaries(const RankPlan& plan) {
  for (const SlotAdmission& admission : plan.admissions) {
    if (admission.reused_len == 0) {
      if (admission.boundary_block != -1) Fault("boundary_block without reuse");
      continue;
    }
    const int last = admission.reused_len / shape(kHistoryGroup).tokens_per_block - 1;
    if (admission.boundary_block != tables_[kHistoryGroup][admission.slot][last] ||
        blocks_[kHistoryGroup][admission.boundary_block].boundary !=
            sequences_[admission.slot].hashes.back()) {
      Fault(absl::StrCat("boundary of slot ", admission.slot));
    }
  }
}

void FakeRank::Append(Sequence* sequence, int32_t token) {
  const SlotAdmission& admission = sequence->admission;
  // A row of a generated token has other bits than a prompt's.
  const bool generated = static_cast<int>(sequence->tokens.size()) >= admission.prompt_len &&
                         !options_.scheduler.reuse_generated;
  const uint64_t content = generated ? Mix(admission.sampling.seed, token) : static_cast<uint64_t>(token);
  sequence->hashes.push_back(Tag(sequence->hashes.empty() ? 77 : sequence->hashes.back(), content));
  sequence->tokens.push_back(token);
}

int FakeRank::FirstRead(int group, int position) const {
  const int lookback = shape(group).lookback;
  return lookback == 0 ? 0 : std::max(0, position - lookback - options_.excess.lookback);
}

// Scratch where the position is not mapped.
FakeRank::Block* FakeRank::BlockAt(int group, int slot, int position) {
  const std::vector<int32_t>& table = tables_[group][slot];
  const size_t index = position / shape(group).tokens_per_block;
  return &blocks_[group][index < table.size() ? table[index] : kScratchBlock];
}

// Scratch has poison in every row.
const FakeRank::Row& FakeRank::ReadRow(int group, int slot, int position) {
  return BlockAt(group, slot, position)->rows[position % shape(group).tokens_per_block];
}

FakeRank::Row* FakeRank::WriteRow(int group, int slot, int position, bool may_be_lost) {
  Block& block = *BlockAt(group, slot, position);
  const std::string where = absl::StrCat("slot ", slot, " writes position ", position, " of group ", group);
  if (&block == &blocks_[group][kScratchBlock]) {
    if (!may_be_lost) Fault(absl::StrCat(where, ", which it does not own"));
    return nullptr;
  }
  if (block.read_only) Fault(absl::StrCat(where, ", in an offered block"));
  if (block.map_count != 1) Fault(absl::StrCat(where, ", in a block with two owners"));
  return &block.rows[position % shape(group).tokens_per_block];
}

void FakeRank::Prefill(const PrefillChunk& chunk) {
  Sequence& sequence = sequences_[chunk.slot];
  const std::vector<int32_t>& prompt = prompt_of_(sequence.admission.sampling.seed);
  const int end = chunk.first_position + static_cast<int>(chunk.token_ids.size());
  if (!sequence.active || sequence.prompt_ended || chunk.first_position != sequence.prefilled ||
      chunk.token_ids.empty() || end > static_cast<int>(prompt.size()) ||
      !std::equal(chunk.token_ids.begin(), chunk.token_ids.end(), prompt.begin() + chunk.first_position) ||
      chunk.last != (end == static_cast<int>(prompt.size()))) {
    Fault(absl::StrCat("chunk of slot ", chunk.slot, " at ", chunk.first_position));
    return;
  }
  const bool has_mtp = options_.scheduler.max_draft_len > 0;
  for (int group = 0; group < group_count(); ++group) {
    for (int s = FirstRead(group, sequence.prefilled); s < sequence.prefilled; ++s) {
      const Row& row = ReadRow(group, chunk.slot, s);
      if (row.target != sequence.hashes[s] || (has_mtp && s > 0 && row.mtp != sequence.hashes[s])) {
        Fault(absl::StrCat("slot ", chunk.slot, " reads stale row ", s, " of group ", group,
                           " in its prefill"));
      }
    }
  }
  for (const int32_t token : chunk.token_ids) Append(&sequence, token);
  for (int group = 0; group < group_count(); ++group) WritePrompt(group, chunk);
  sequence.prefilled = end;
  sequence.prompt_ended = chunk.last;
}

// In a window only the rows that the next forward may read must have memory.
void FakeRank::WritePrompt(int group, const PrefillChunk& chunk) {
  const Sequence& sequence = sequences_[chunk.slot];
  const int end = chunk.first_position + static_cast<int>(chunk.token_ids.size());
  const int size = shape(group).tokens_per_block;
  for (int s = chunk.first_position; s < end; ++s) {
    Row* const row = WriteRow(group, chunk.slot, s, /*may_be_lost=*/s < FirstRead(group, end));
    if (row == nullptr) continue;
    row->target = sequence.hashes[s];
    if (options_.scheduler.max_draft_len > 0 && s > 0) row->mtp = sequence.hashes[s];
    if ((s + 1) % size != 0) continue;
    Block& block = *BlockAt(group, chunk.slot, s);
    block.boundary = sequence.hashes[s];
    block.read_only = s + 1 <= sequence.admission.prompt_len - options_.scheduler.drafter.offer_margin;
  }
}

int32_t FakeRank::TokenAt(const SlotAdmission& admission, int position) {
  const uint64_t seed = admission.sampling.seed;
  return options_.token_of ? options_.token_of(seed, position) : ScriptedToken(seed, position);
}

int FakeRank::AcceptedDrafts(const Slot& slot, int verified) {
  const uint64_t seed = slot.admission.sampling.seed;
  // Some stretches accept every draft, so that the bounds are reached.
  if (Mix(seed, slot.length / 32) % 3 == 0) return verified;
  return static_cast<int>(Mix(Mix(seed, slot.length), 5) % (verified + 1));
}

void FakeRank::PromptEnded(int slot_index, int32_t first_token) {
  Sequence& sequence = sequences_[slot_index];
  Append(&sequence, first_token);
  sequence.phase = sequence.admission.thinking.PhaseAfter(sequence.phase, first_token);
  const int m = sequence.admission.prompt_len;
  if (options_.scheduler.max_draft_len == 0) return;
  for (int group = 0; group < group_count(); ++group) {
    if (Row* const row = WriteRow(group, slot_index, m)) row->mtp = sequence.hashes[m];
  }
}

void FakeRank::Given(int slot_index, const std::vector<int32_t>& token_ids) {
  Sequence& sequence = sequences_[slot_index];
  sequence.step_is_given = true;
  for (size_t i = 0; i < token_ids.size(); ++i) {
    const int position = slot(slot_index).length + 1 + static_cast<int>(i);
    if (token_ids[i] != TokenAt(sequence.admission, position))
      Fault(absl::StrCat("slot ", slot_index, ": wrong given token at ", position));
  }
}

void FakeRank::StepBegins(int slot_index) {
  const Sequence& sequence = sequences_[slot_index];
  const int p = slot(slot_index).length;
  const bool has_mtp = options_.scheduler.max_draft_len > 0;
  const std::string where = absl::StrCat("slot ", slot_index, " at ", p);
  for (int group = 0; group < group_count(); ++group) {
    const int first = FirstRead(group, p);
    for (int s = first; s < p; ++s) {
      if (ReadRow(group, slot_index, s).target != sequence.hashes[s])
        return Fault(absl::StrCat(where, " reads stale target row ", s, " of group ", group));
    }
    for (int s = std::max(1, first); has_mtp && s <= p; ++s) {
      if (ReadRow(group, slot_index, s).mtp != sequence.hashes[s])
        return Fault(absl::StrCat(where, " reads stale MTP row ", s, " of group ", group));
    }
    for (size_t i = 0; i < sequence.live_rows.size(); ++i) {
      const int s = p + 1 + static_cast<int>(i);
      if (ReadRow(group, slot_index, s).mtp != sequence.live_rows[i])
        return Fault(absl::StrCat(where, " lost live MTP row ", s, " of group ", group));
    }
  }
}

void FakeRank::StepEnds(int slot_index, int first_position, const IterationPlan& plan, SlotResult* result) {
  Sequence& sequence = sequences_[slot_index];
  const int last = slot(slot_index).length;
  for (int s = first_position + 1; s <= last; ++s) Append(&sequence, TokenAt(sequence.admission, s));
  result->relaxed_count = CountRelaxed(&sequence, first_position, plan.acceptance, result->ends_in_draft);
  sequence.step_is_given = false;
  relaxed_drafts_[sequence.admission.sampling.seed] += result->relaxed_count;
  WriteStep(slot_index, first_position, plan.draft_len);
}

// Counts the accepted drafts that only relaxation accepted. The accepted drafts are the tokens after
// first_position except the last, and that one as well where the step `ends_in_draft`. Relaxation applies to
// greedy requests in the thinking phase (docs/speculation.md section 2).
int FakeRank::CountRelaxed(Sequence* sequence, int first_position, const AcceptanceRule& acceptance,
                           bool ends_in_draft) {
  const SlotAdmission& admission = sequence->admission;
  const bool relaxes = acceptance.relaxed_topk > 0 && acceptance.forced_length == 0 && !admission.strict &&
                       admission.sampling.temperature == 0 && !sequence->step_is_given;
  const int last = static_cast<int>(sequence->tokens.size()) - 1;
  int count = 0;
  for (int s = first_position + 1; s <= last; ++s) {
    const bool thinks = sequence->phase == Phase::kThinking;
    count +=
        relaxes && thinks && (s < last || ends_in_draft) && (Mix(admission.sampling.seed, s) >> 8) % 4 == 0;
    sequence->phase = admission.thinking.PhaseAfter(sequence->phase, sequence->tokens[s]);
  }
  return count;
}

void FakeRank::WriteStep(int slot_index, int first_position, int draft_len) {
  Sequence& sequence = sequences_[slot_index];
  const int p = first_position;
  const int last = slot(slot_index).length;  // P
  const int kmax = options_.scheduler.max_draft_len;
  const auto write = [&](int s, const auto& change) {
    for (int group = 0; group < group_count(); ++group) {
      if (Row* const row = WriteRow(group, slot_index, s)) change(row);
    }
  };
  for (int s = p; s <= p + draft_len; ++s) {
    const uint64_t target = s < last ? sequence.hashes[s] : kJunk;
    write(s, [&](Row* row) { row->target = target; });
    const bool ends_block = (s + 1) % shape(kHistoryGroup).tokens_per_block == 0;
    if (options_.scheduler.reuse_generated && ends_block) {
      BlockAt(kHistoryGroup, slot_index, s)->boundary = target;
    }
  }
  sequence.live_rows.clear();
  if (kmax == 0) {
    if (options_.excess.written > 0) write(p + draft_len + options_.excess.written, [](Row*) {});
    return FreezeGenerated(slot_index, p);
  }
  const int first = options_.vanilla ? std::min(p + 1, std::max(1, last - kmax)) : p + 1;
  for (int s = first; s <= p + draft_len + kmax + options_.excess.written; ++s) {
    const bool live = s > last && s < last + kmax + options_.excess.live_rows;
    const uint64_t tag = Tag(Tag(sequence.admission.sampling.seed, last), s);
    write(s, [&](Row* row) { row->mtp = s <= last ? sequence.hashes[s] : live ? tag : kJunk; });
    if (live) sequence.live_rows.push_back(tag);
  }
  FreezeGenerated(slot_index, p);
}

// The blocks that the step from first_position filled may be offered: no later step writes them.
void FakeRank::FreezeGenerated(int slot_index, int first_position) {
  if (!options_.scheduler.reuse_generated) return;
  const int margin = options_.scheduler.drafter.offer_margin;
  for (int group = 0; group < group_count(); ++group) {
    const int size = shape(group).tokens_per_block;
    for (int s = std::max(0, first_position - margin); s < slot(slot_index).length - margin; ++s) {
      if ((s + 1) % size == 0) BlockAt(group, slot_index, s)->read_only = true;
    }
  }
}

}  // namespace foredraft
