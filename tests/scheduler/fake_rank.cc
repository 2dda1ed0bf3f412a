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
      blocks_(options.scheduler.block_count),
      sequences_(options.scheduler.max_batch_size),
      kept_entries_(options.scheduler.max_batch_size) {
  const SchedulerOptions& scheduler = options.scheduler;
  const int positions = scheduler.max_seq_len + 2 * scheduler.max_draft_len;
  const int entries = (positions + scheduler.tokens_per_block - 1) / scheduler.tokens_per_block;
  tables_.assign(scheduler.max_batch_size, std::vector<int32_t>(entries, kScratchBlock));
  for (Block& block : blocks_) block.rows.resize(scheduler.tokens_per_block);
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
  for (const std::vector<int32_t>& table : tables_) {
    if (std::any_of(table.begin(), table.end(), [](int32_t block) { return block != 0; })) return false;
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
    image_blocks_ -= HostBlocks(found->second);
    images_.erase(found);
  }
  for (const SwapOut& swap : plan.swaps_out) {
    Sequence& sequence = sequences_[swap.slot];
    if (!sequence.prompt_ended) Fault(absl::StrCat("swap out of slot ", swap.slot));
    Image& image = images_[swap.image_id];
    if (!image.blocks.empty()) Fault(absl::StrCat("image id ", swap.image_id, " used twice"));
    for (size_t i = 0; i < swap.block_ids.size(); ++i) {
      if (tables_[swap.slot][i] != swap.block_ids[i]) Fault("swap out names a block that is not the slot's");
      image.blocks.push_back(blocks_[swap.block_ids[i]]);
    }
    image.sequence = std::exchange(sequence, {});
    image_blocks_ += HostBlocks(image);
    if (image_blocks_ > options_.scheduler.host_block_count) Fault("host store overflows");
  }
}

void FakeRank::TakeIn(const RankPlan& plan) {
  std::fill(kept_entries_.begin(), kept_entries_.end(), 0);
  for (const SwapIn& swap : plan.swaps_in) {
    auto found = images_.find(swap.image_id);
    if (found == images_.end() || found->second.blocks.size() != swap.block_ids.size()) {
      Fault(absl::StrCat("swap in of image ", swap.image_id));
      continue;
    }
    if (sequences_[swap.slot].active) Fault(absl::StrCat("swap into busy slot ", swap.slot));
    for (size_t i = 0; i < swap.block_ids.size(); ++i) {
      Block& block = blocks_[swap.block_ids[i]];
      block.rows = found->second.blocks[i].rows;
      block.read_only = false;
    }
    sequences_[swap.slot] = std::move(found->second.sequence);
    kept_entries_[swap.slot] = static_cast<int>(swap.block_ids.size());
    image_blocks_ -= HostBlocks(found->second);
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
    kept_entries_[admission.slot] = admission.reused_len / options_.scheduler.tokens_per_block;
  }
}

void FakeRank::ApplyDeltas(const RankPlan& plan) {
  std::vector<std::pair<int, int>> fresh;  // (slot, entry)
  for (const BlockTableDelta& delta : plan.block_table_deltas) {
    std::vector<int32_t>& table = tables_[delta.slot];
    if (delta.first_index < 0 || delta.first_index + delta.block_ids.size() > table.size()) {
      Fault(absl::StrCat("delta past the table of slot ", delta.slot));
      continue;
    }
    for (size_t i = 0; i < delta.block_ids.size(); ++i) {
      const int entry = delta.first_index + static_cast<int>(i);
      const int32_t block = delta.block_ids[i];
      if (table[entry] != kScratchBlock) --blocks_[table[entry]].map_count;
      table[entry] = block;
      if (block == kScratchBlock) continue;
      ++blocks_[block].map_count;
      if (entry >= kept_entries_[delta.slot]) fresh.emplace_back(delta.slot, entry);
    }
  }
  for (const auto& [slot, entry] : fresh) {
    Block& block = blocks_[tables_[slot][entry]];
    if (block.map_count != 1) {
      Fault(
          absl::StrCat("block ", tables_[slot][entry], " handed to slot ", slot, " while mapped elsewhere"));
    }
    std::fill(block.rows.begin(), block.rows.end(), Row());
    block.boundary = 0;
    block.read_only = false;
  }
  for (const SlotAdmission& admission : plan.admissions) {
    if (admission.reused_len == 0) {
      if (admission.boundary_block != -1) Fault("boundary_block without reuse");
      continue;
    }
    const int last = admission.reused_len / options_.scheduler.tokens_per_block - 1;
    if (admission.boundary_block != tables_[admission.slot][last] ||
        blocks_[admission.boundary_block].boundary != sequences_[admission.slot].hashes.back()) {
      Fault(absl::StrCat("boundary of slot ", admission.slot));
    }
  }
  for (size_t slot = 0; slot < sequences_.size(); ++slot) {
    if (!sequences_[slot].active && tables_[slot] != std::vector<int32_t>(tables_[slot].size())) {
      Fault(absl::StrCat("table of idle slot ", slot, " is not clear"));
    }
  }
}

void FakeRank::Append(Sequence* sequence, int32_t token) {
  sequence->hashes.push_back(Tag(sequence->hashes.empty() ? 77 : sequence->hashes.back(), token));
  sequence->tokens.push_back(token);
}

FakeRank::Row* FakeRank::ReadRow(int slot, int position) {
  return &blocks_[tables_[slot][position / options_.scheduler.tokens_per_block]]
              .rows[position % options_.scheduler.tokens_per_block];
}

FakeRank::Row* FakeRank::WriteRow(int slot, int position) {
  const size_t entry = position / options_.scheduler.tokens_per_block;
  if (entry >= tables_[slot].size() || tables_[slot][entry] == kScratchBlock) {
    Fault(absl::StrCat("slot ", slot, " writes position ", position, ", which it does not own"));
    return &blocks_[kScratchBlock].rows[0];
  }
  const Block& block = blocks_[tables_[slot][entry]];
  if (block.read_only)
    Fault(absl::StrCat("slot ", slot, " writes position ", position, " of an offered block"));
  if (block.map_count != 1) Fault(absl::StrCat("block ", tables_[slot][entry], " has two owners"));
  return ReadRow(slot, position);
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
  for (int s = 0; s < sequence.prefilled; ++s) {
    const Row& row = *ReadRow(chunk.slot, s);
    if (row.target != sequence.hashes[s] || (has_mtp && s > 0 && row.mtp != sequence.hashes[s])) {
      Fault(absl::StrCat("slot ", chunk.slot, " reads stale row ", s, " in its prefill"));
    }
  }
  for (int s = chunk.first_position; s < end; ++s) {
    Append(&sequence, prompt[s]);
    Row* row = WriteRow(chunk.slot, s);
    row->target = sequence.hashes[s];
    if (has_mtp && s > 0) row->mtp = sequence.hashes[s];
    if ((s + 1) % options_.scheduler.tokens_per_block != 0) continue;
    Block& block = blocks_[tables_[chunk.slot][s / options_.scheduler.tokens_per_block]];
    block.boundary = sequence.hashes[s];
    block.read_only = s + 1 <= sequence.admission.prompt_len - options_.scheduler.offer_margin;
  }
  sequence.prefilled = end;
  sequence.prompt_ended = chunk.last;
}

int32_t FakeRank::TokenAt(const SlotAdmission& admission, int position) {
  return ScriptedToken(admission.sampling.seed, position);
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
  if (options_.scheduler.max_draft_len > 0) WriteRow(slot_index, m)->mtp = sequence.hashes[m];
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
  for (int s = 0; s < p; ++s) {
    if (ReadRow(slot_index, s)->target != sequence.hashes[s])
      return Fault(absl::StrCat(where, " reads stale target row ", s));
  }
  for (int s = 1; has_mtp && s <= p; ++s) {
    if (ReadRow(slot_index, s)->mtp != sequence.hashes[s])
      return Fault(absl::StrCat(where, " reads stale MTP row ", s));
  }
  for (size_t i = 0; i < sequence.live_rows.size(); ++i) {
    const int s = p + 1 + static_cast<int>(i);
    if (ReadRow(slot_index, s)->mtp != sequence.live_rows[i])
      return Fault(absl::StrCat(where, " lost live MTP row ", s));
  }
}

void FakeRank::StepEnds(int slot_index, int first_position, const IterationPlan& plan, SlotResult* result) {
  Sequence& sequence = sequences_[slot_index];
  const int last = slot(slot_index).length;
  for (int s = first_position + 1; s <= last; ++s) Append(&sequence, TokenAt(sequence.admission, s));
  result->relaxed_count = CountRelaxed(&sequence, first_position, plan.acceptance);
  sequence.step_is_given = false;
  relaxed_drafts_[sequence.admission.sampling.seed] += result->relaxed_count;
  WriteStep(slot_index, first_position, plan.draft_len);
}

// Counts the accepted drafts that only relaxation accepted. The accepted drafts are the tokens after
// first_position except the last. Relaxation applies to greedy requests in the thinking phase
// (docs/speculation.md section 2).
int FakeRank::CountRelaxed(Sequence* sequence, int first_position, const AcceptanceRule& acceptance) {
  const SlotAdmission& admission = sequence->admission;
  const bool relaxes = acceptance.relaxed_topk > 0 && acceptance.forced_length == 0 && !admission.strict &&
                       admission.sampling.temperature == 0 && !sequence->step_is_given;
  const int last = static_cast<int>(sequence->tokens.size()) - 1;
  int count = 0;
  for (int s = first_position + 1; s <= last; ++s) {
    const bool thinks = sequence->phase == Phase::kThinking;
    count += relaxes && thinks && s < last && (Mix(admission.sampling.seed, s) >> 8) % 4 == 0;
    sequence->phase = admission.thinking.PhaseAfter(sequence->phase, sequence->tokens[s]);
  }
  return count;
}

void FakeRank::WriteStep(int slot_index, int first_position, int draft_len) {
  Sequence& sequence = sequences_[slot_index];
  const int p = first_position;
  const int last = slot(slot_index).length;  // P
  const int kmax = options_.scheduler.max_draft_len;
  for (int s = p; s <= p + draft_len; ++s) {
    WriteRow(slot_index, s)->target = s < last ? sequence.hashes[s] : kJunk;
  }
  sequence.live_rows.clear();
  if (kmax == 0) {
    if (options_.extra_reach > 0) WriteRow(slot_index, p + draft_len + options_.extra_reach);
    return;
  }
  const int first = options_.vanilla ? std::min(p + 1, std::max(1, last - kmax)) : p + 1;
  for (int s = first; s <= p + draft_len + kmax + options_.extra_reach; ++s) {
    const bool live = s > last && s < last + kmax + options_.extra_live;
    const uint64_t tag = Tag(Tag(sequence.admission.sampling.seed, last), s);
    WriteRow(slot_index, s)->mtp = s <= last ? sequence.hashes[s] : live ? tag : kJunk;
    if (live) sequence.live_rows.push_back(tag);
  }
}

}  // namespace foredraft
