#include "tests/scheduler/fake_rank.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 40;
constexpr uint64_t kJunk = 1;  // written, but nobody may need it

// splitmix64's finisher: the same on every run and machine, unlike absl::Hash.
uint64_t Mix(uint64_t a, uint64_t b) {
  uint64_t x = a * 0x9e3779b97f4a7c15u + b + 0x7f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return (x ^ (x >> 31)) | 2;  // never poison, never junk
}

}  // namespace

int32_t ScriptedToken(uint64_t seed, int position) {
  return static_cast<int32_t>((Mix(seed, position) >> 8) % kVocabSize);
}

FakeRank::FakeRank(const FakeRankOptions& options,
                   std::function<const std::vector<int32_t>&(uint64_t seed)> prompt_of)
    : options_(options),
      prompt_of_(std::move(prompt_of)),
      blocks_(options.block_count),
      slots_(options.slot_count),
      kept_entries_(options.slot_count) {
  const int positions = options.max_seq_len + 2 * options.max_draft_len;
  const int entries = (positions + options.tokens_per_block - 1) / options.tokens_per_block;
  tables_.assign(options.slot_count, std::vector<int32_t>(entries, kScratchBlock));
  for (Block& block : blocks_) block.rows.resize(options.tokens_per_block);
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

// docs/speculation.md section 2: greedy requests, rows of the thinking phase.
bool FakeRank::RelaxesNext(const Slot& slot, const Acceptance& acceptance) const {
  return acceptance.relaxed_topk > 0 && acceptance.forced_length == 0 && slot.thinking &&
         !slot.admission.strict && slot.admission.sampling.temperature == 0;
}

// The token and the phase after it.
void FakeRank::Emit(Slot* slot, int32_t token) {
  Append(slot, token);
  if (token == slot->admission.thinking.begin) slot->thinking = true;
  if (token == slot->admission.thinking.end) slot->thinking = false;
}

bool FakeRank::IsBare() const {
  for (const Slot& slot : slots_) {
    if (slot.active) return false;
  }
  for (const std::vector<int32_t>& table : tables_) {
    if (std::any_of(table.begin(), table.end(), [](int32_t block) { return block != 0; })) return false;
  }
  return images_.empty() && results_.empty();
}

absl::Status FakeRank::Launch(const IterationPlan& plan) {
  if (plan.number != number_ + 1) Fault(absl::StrCat("plan ", plan.number, " out of order"));
  number_ = plan.number;
  if (results_.size() >= 2) Fault("more than two plans in flight");
  const RankPlan& rank = plan.ranks[options_.rank];
  TakeOut(rank);
  TakeIn(rank);
  ApplyDeltas(rank);

  int rows = 0;
  std::vector<bool> first_token(slots_.size());
  for (const PrefillChunk& chunk : rank.prefill_chunks) {
    Prefill(chunk);
    rows += static_cast<int>(chunk.token_ids.size());
    if (chunk.last) first_token[chunk.slot] = true;
  }
  if (rows != plan.prefill_rows[options_.rank]) Fault("prefill_rows do not match the chunks");
  if (std::count(first_token.begin(), first_token.end(), true) != plan.ended_prompts[options_.rank])
    Fault("ended_prompts do not match the chunks");
  if (rows > options_.max_num_tokens) Fault("prefill budget exceeded");
  if (static_cast<int>(rank.live_slots.size()) > plan.decode_bucket) Fault("more live slots than places");

  RankResult result{.number = plan.number};
  // The more places, the dearer a draft.
  const int cost = 8 + plan.decode_bucket * plan.decode_bucket * plan.draft_len;
  const double hiccup = 1 + static_cast<double>(Mix(plan.number, options_.rank) % 100) / 500;
  if (plan.decode_bucket > 0) result.decode_seconds = 1e-3 * cost * hiccup;
  largest_live_cap_ = 0;
  for (int32_t slot : rank.live_slots) {
    largest_live_cap_ = std::max(largest_live_cap_, slots_[slot].admission.draft_cap);
    result.slots.push_back(Step(slot, plan, first_token[slot]));
    first_token[slot] = false;
  }
  for (size_t slot = 0; slot < first_token.size(); ++slot) {
    if (first_token[slot]) Fault(absl::StrCat("slot ", slot, ": prompt ended, but it is not live"));
  }
  results_.push_back(std::move(result));
  return absl::OkStatus();
}

absl::StatusOr<RankResult> FakeRank::Collect() {
  RankResult result = std::move(results_.front());
  results_.pop_front();
  return result;
}

void FakeRank::TakeOut(const RankPlan& plan) {
  for (int32_t slot : plan.releases) {
    if (!slots_[slot].active) Fault(absl::StrCat("release of idle slot ", slot));
    slots_[slot] = {};
  }
  for (uint64_t image : plan.dropped_images) {
    auto found = images_.find(image);
    if (found == images_.end()) {
      Fault(absl::StrCat("drop of unknown image ", image));
      continue;
    }
    image_blocks_ -= static_cast<int64_t>(found->second.blocks.size());
    images_.erase(found);
  }
  for (const SwapOut& swap : plan.swaps_out) {
    Slot& slot = slots_[swap.slot];
    if (!slot.active || slot.length < 0) Fault(absl::StrCat("swap out of slot ", swap.slot));
    Image& image = images_[swap.image_id];
    if (!image.blocks.empty()) Fault(absl::StrCat("image id ", swap.image_id, " used twice"));
    for (size_t i = 0; i < swap.block_ids.size(); ++i) {
      if (tables_[swap.slot][i] != swap.block_ids[i]) Fault("swap out names a block that is not the slot's");
      image.blocks.push_back(blocks_[swap.block_ids[i]]);
    }
    image.slot = std::exchange(slot, {});
    image_blocks_ += static_cast<int64_t>(image.blocks.size());
    if (image_blocks_ > options_.host_block_count) Fault("host store overflows");
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
    if (slots_[swap.slot].active) Fault(absl::StrCat("swap into busy slot ", swap.slot));
    for (size_t i = 0; i < swap.block_ids.size(); ++i) {
      Block& block = blocks_[swap.block_ids[i]];
      block.rows = found->second.blocks[i].rows;
      block.read_only = false;
    }
    slots_[swap.slot] = std::move(found->second.slot);
    kept_entries_[swap.slot] = static_cast<int>(swap.block_ids.size());
    image_blocks_ -= static_cast<int64_t>(swap.block_ids.size());
    images_.erase(found);
  }
  for (const SlotAdmission& admission : plan.admissions) {
    Slot& slot = slots_[admission.slot];
    if (slot.active) Fault(absl::StrCat("admission to busy slot ", admission.slot));
    slot = {};
    slot.active = true;
    slot.admission = admission;
    slot.prefilled = admission.reused_len;
    slot.thinking = admission.phase == Phase::kThinking;
    const std::vector<int32_t>& prompt = prompt_of_(admission.sampling.seed);
    if (static_cast<int>(prompt.size()) != admission.prompt_len) Fault("prompt_len");
    for (int i = 0; i < admission.reused_len; ++i) Append(&slot, prompt[i]);
    const bool wants_ids = admission.sampling.counts_tokens();
    if (wants_ids ? admission.reused_ids != slot.tokens : !admission.reused_ids.empty()) Fault("reused_ids");
    kept_entries_[admission.slot] = admission.reused_len / options_.tokens_per_block;
    reused_tokens_ += admission.reused_len;
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
    const int last = admission.reused_len / options_.tokens_per_block - 1;
    if (admission.boundary_block != tables_[admission.slot][last] ||
        blocks_[admission.boundary_block].boundary != slots_[admission.slot].hashes.back()) {
      Fault(absl::StrCat("boundary of slot ", admission.slot));
    }
  }
  for (size_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot].active && tables_[slot] != std::vector<int32_t>(tables_[slot].size())) {
      Fault(absl::StrCat("table of idle slot ", slot, " is not clear"));
    }
  }
}

void FakeRank::Append(Slot* slot, int32_t token) {
  slot->hashes.push_back(Mix(slot->hashes.empty() ? 77 : slot->hashes.back(), token));
  slot->tokens.push_back(token);
}

FakeRank::Row* FakeRank::ReadRow(int slot, int position) {
  return &blocks_[tables_[slot][position / options_.tokens_per_block]]
              .rows[position % options_.tokens_per_block];
}

FakeRank::Row* FakeRank::WriteRow(int slot, int position) {
  const size_t entry = position / options_.tokens_per_block;
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
  Slot& slot = slots_[chunk.slot];
  const std::vector<int32_t>& prompt = prompt_of_(slot.admission.sampling.seed);
  const int end = chunk.first_position + static_cast<int>(chunk.token_ids.size());
  if (!slot.active || slot.length >= 0 || chunk.first_position != slot.prefilled || chunk.token_ids.empty() ||
      end > static_cast<int>(prompt.size()) ||
      !std::equal(chunk.token_ids.begin(), chunk.token_ids.end(), prompt.begin() + chunk.first_position) ||
      chunk.last != (end == static_cast<int>(prompt.size()))) {
    Fault(absl::StrCat("chunk of slot ", chunk.slot, " at ", chunk.first_position));
    return;
  }
  const bool has_mtp = options_.max_draft_len > 0;
  for (int s = 0; s < slot.prefilled; ++s) {
    const Row& row = *ReadRow(chunk.slot, s);
    if (row.target != slot.hashes[s] || (has_mtp && s > 0 && row.mtp != slot.hashes[s])) {
      Fault(absl::StrCat("slot ", chunk.slot, " reads stale row ", s, " in its prefill"));
    }
  }
  for (int s = chunk.first_position; s < end; ++s) {
    Append(&slot, prompt[s]);
    Row* row = WriteRow(chunk.slot, s);
    row->target = slot.hashes[s];
    if (has_mtp && s > 0) row->mtp = slot.hashes[s];
    if ((s + 1) % options_.tokens_per_block != 0) continue;
    Block& block = blocks_[tables_[chunk.slot][s / options_.tokens_per_block]];
    block.boundary = slot.hashes[s];
    block.read_only = s + 1 <= slot.admission.prompt_len - options_.offer_margin;
  }
  slot.prefilled = end;
  if (!chunk.last) return;
  const int m = slot.admission.prompt_len;
  const int32_t token = ScriptedToken(slot.admission.sampling.seed, m);
  Emit(&slot, token);
  slot.length = m;
  const std::vector<int32_t>& stops = slot.admission.stop_ids;
  slot.finished = m >= slot.admission.length_limit || std::count(stops.begin(), stops.end(), token) > 0;
  if (has_mtp) {
    WriteRow(chunk.slot, m)->mtp = slot.hashes[m];
    slot.draft_count = 1;
  }
}

void FakeRank::CheckStepReads(int slot_index) {
  const Slot& slot = slots_[slot_index];
  const int p = slot.length;
  const bool has_mtp = options_.max_draft_len > 0;
  for (int s = 0; s < p; ++s) {
    if (ReadRow(slot_index, s)->target != slot.hashes[s]) {
      Fault(absl::StrCat("slot ", slot_index, " at ", p, " reads stale target row ", s));
      return;
    }
  }
  for (int s = 1; has_mtp && s <= p; ++s) {
    if (ReadRow(slot_index, s)->mtp != slot.hashes[s]) {
      Fault(absl::StrCat("slot ", slot_index, " at ", p, " reads stale MTP row ", s));
      return;
    }
  }
  for (size_t i = 0; i < slot.live_rows.size(); ++i) {
    const int s = p + 1 + static_cast<int>(i);
    if (ReadRow(slot_index, s)->mtp != slot.live_rows[i]) {
      Fault(absl::StrCat("slot ", slot_index, " at ", p, " lost live MTP row ", s));
      return;
    }
  }
}

SlotResult FakeRank::Step(int slot_index, const IterationPlan& plan, bool first_token) {
  const int draft_len = plan.draft_len;
  Slot& slot = slots_[slot_index];
  SlotResult result{.slot = slot_index};
  if (!slot.active || slot.length < 0) {
    Fault(absl::StrCat("live slot ", slot_index, " has no sequence"));
    return result;
  }
  if (first_token) {
    result.first_token = true;
    result.token_ids.push_back(slot.tokens.back());
  }
  if (!slot.finished) {
    CheckStepReads(slot_index);
    const uint64_t seed = slot.admission.sampling.seed;
    const int p = slot.length;
    const int kmax = options_.max_draft_len;
    const int verified = std::min({slot.draft_count, slot.admission.draft_cap, draft_len});
    int n = 1 + static_cast<int>(Mix(Mix(seed, p), 5) % (verified + 1));
    // Runs of full acceptance, where the bounds are reached.
    if (Mix(seed, p / 32) % 3 == 0) n = verified + 1;
    n = std::min(n, slot.admission.length_limit - p);
    const std::vector<int32_t>& stops = slot.admission.stop_ids;
    std::vector<bool> relaxed;  // per emitted token
    for (int j = 1; j <= n; ++j) {
      const int32_t token = ScriptedToken(seed, p + j);
      relaxed.push_back(RelaxesNext(slot, plan.acceptance) && (Mix(seed, p + j) >> 8) % 4 == 0);
      Emit(&slot, token);
      result.token_ids.push_back(token);
      if (std::count(stops.begin(), stops.end(), token) > 0) {
        slot.finished = true;
        n = j;
      }
    }
    result.relaxed_count = static_cast<int32_t>(std::count(relaxed.begin(), relaxed.begin() + n - 1, true));
    relaxed_drafts_[seed] += result.relaxed_count;
    const int last = p + n;  // P
    slot.length = last;
    if (last == slot.admission.length_limit) slot.finished = true;
    result.drafts_verified = verified;
    for (int s = p; s <= p + draft_len; ++s) {
      WriteRow(slot_index, s)->target = s < last ? slot.hashes[s] : kJunk;
    }
    slot.live_rows.clear();
    if (kmax > 0) {
      const int first = options_.vanilla ? std::min(p + 1, std::max(1, last - kmax)) : p + 1;
      for (int s = first; s <= p + draft_len + kmax + options_.extra_reach; ++s) {
        const bool live = s > last && s < last + kmax + options_.extra_live;
        const uint64_t tag = Mix(Mix(seed, last), s);
        WriteRow(slot_index, s)->mtp = s <= last ? slot.hashes[s] : live ? tag : kJunk;
        if (live) slot.live_rows.push_back(tag);
      }
      slot.draft_count = draft_len;
    } else if (options_.extra_reach > 0) {
      WriteRow(slot_index, p + draft_len + options_.extra_reach);
    }
  }
  result.length = slot.length;
  result.finished = slot.finished;
  return result;
}

}  // namespace foredraft
