#include "engine/slot_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

SlotConstants ConstantsOf(const SlotAdmission& admission) {
  CHECK_LE(admission.stop_ids.size(), static_cast<size_t>(kMaxStopIds)) << "slot " << admission.slot;
  const SamplingParams& sampling = admission.sampling;
  SlotConstants constants{.seed = sampling.seed,
                          .temperature = sampling.temperature,
                          .top_p = sampling.top_p,
                          .min_p = sampling.min_p,
                          .repetition_penalty = sampling.repetition_penalty,
                          .presence_penalty = sampling.presence_penalty,
                          .frequency_penalty = sampling.frequency_penalty,
                          .top_k = sampling.top_k,
                          .logprob_count = admission.logprob_count,
                          .draft_cap = admission.draft_cap,
                          .strict = admission.strict ? 1 : 0,
                          .begin_thinking_id = admission.thinking.begin,
                          .end_thinking_id = admission.thinking.end,
                          .prompt_len = admission.prompt_len,
                          .length_limit = admission.length_limit,
                          .stop_id_count = static_cast<int32_t>(admission.stop_ids.size()),
                          .stop_ids = {}};
  std::copy(admission.stop_ids.begin(), admission.stop_ids.end(), constants.stop_ids);
  return constants;
}

}  // namespace

SlotStateShape SlotStateShape::Of(const EngineOptions& options, const ModelConfig& config) {
  std::vector<int> strides;
  for (const CacheGroup& group : CacheGroupsOf(config, options.module_count(), options.tokens_per_block)) {
    strides.push_back(options.blocks_per_slot(group.tokens_per_block));
  }
  return {.slot_count = options.max_batch_size,
          .vocab_size = config.vocab_size,
          .table_strides = std::move(strides),
          .output_width = OutputWidth(config),
          .level_count = options.module_count(),
          .recent_len = options.use_mtp_vanilla ? options.max_draft_len : 0};
}

absl::StatusOr<SlotState> SlotState::Create(Device& device, const SlotStateShape& shape) {
  SlotState state;
  state.device_ = &device;
  state.shape_ = shape;
  const size_t slots = shape.slot_count;
  state.arrays_.vocab_size = shape.vocab_size;
  ASSIGN_OR_RETURN(state.rule_, device.AllocateArray<AcceptanceRule>(1));
  state.arrays_.rule = state.rule_;
  ASSIGN_OR_RETURN(state.arrays_.constants, device.AllocateArray<SlotConstants>(slots));
  ASSIGN_OR_RETURN(state.arrays_.progress, device.AllocateArray<SlotProgress>(slots));
  ASSIGN_OR_RETURN(state.arrays_.drafts, device.AllocateArray<SlotDrafts>(slots));
  ASSIGN_OR_RETURN(state.arrays_.output_counts, device.AllocateArray<int32_t>(slots * shape.vocab_size));
  ASSIGN_OR_RETURN(state.arrays_.prompt_seen, device.AllocateArray<uint8_t>(slots * shape.vocab_size));
  for (const int stride : shape.table_strides) {
    ASSIGN_OR_RETURN(BlockTables tables, BlockTables::Create(device, shape.slot_count, stride));
    state.tables_.push_back(std::move(tables));
  }
  const int boundary_width = shape.level_count * shape.output_width;
  ASSIGN_OR_RETURN(float* const boundaries, device.AllocateArray<float>(slots * boundary_width));
  state.boundaries_ = Dense(boundaries, shape.slot_count, boundary_width);
  const int recent_rows = shape.slot_count * shape.recent_len;
  ASSIGN_OR_RETURN(state.recent_ids_, device.AllocateArray<int32_t>(recent_rows));
  ASSIGN_OR_RETURN(float* const hiddens,
                   device.AllocateArray<float>(size_t(recent_rows) * shape.output_width));
  state.recent_hiddens_ = Dense(hiddens, recent_rows, shape.output_width);
  state.facts_.assign(slots, {});
  state.zero_counts_.assign(shape.vocab_size, 0);
  return state;
}

void SlotState::SetRule(Stream& stream, const AcceptanceRule& rule) { Write(stream, rule_, rule); }

void SlotState::Admit(Stream& stream, const SlotAdmission& admission) {
  const int slot = admission.slot;
  Write(stream, arrays_.constants + slot, ConstantsOf(admission));
  Write(stream, arrays_.progress + slot,
        SlotProgress{.length = admission.reused_len,
                     .last_token = 0,
                     .finished = 0,
                     .active = 0,
                     .thinking = admission.phase == Phase::kThinking ? 1 : 0});
  Write(stream, arrays_.drafts + slot, SlotDrafts{});
  SlotFacts& facts = facts_[slot];
  facts.wants_logprobs = admission.logprob_count >= 0;
  facts.counts_tokens = admission.sampling.counts_tokens();
  facts.greedy = admission.sampling.temperature == 0 && !facts.counts_tokens && !facts.wants_logprobs;
  facts.recent_prompt_ids.assign(shape_.recent_len, 0);
  facts.prompt_seen.clear();
  if (!facts.counts_tokens) return;
  const size_t vocab = zero_counts_.size();
  facts.prompt_seen.assign(vocab, 0);
  device_->CopyToDevice(stream, arrays_.output_counts + slot * vocab, zero_counts_.data(),
                        vocab * sizeof(int32_t));
  device_->CopyToDevice(stream, arrays_.prompt_seen + slot * vocab, facts.prompt_seen.data(), vocab);
  CountPrompt(stream, slot, admission.reused_ids);
}

void SlotState::CountPrompt(Stream& stream, int slot, std::span<const int32_t> ids) {
  std::vector<uint8_t>& seen = facts_[slot].prompt_seen;
  if (seen.empty() || ids.empty()) return;
  for (const int32_t id : ids) {
    CHECK(id >= 0 && static_cast<size_t>(id) < seen.size()) << "slot " << slot << ": token id " << id;
    seen[id] = 1;
  }
  device_->CopyToDevice(stream, arrays_.prompt_seen + slot * seen.size(), seen.data(), seen.size());
}

const std::vector<int32_t>& SlotState::PassRecentPrompt(int slot, std::span<const int32_t> ids) {
  std::vector<int32_t>& recent = facts_[slot].recent_prompt_ids;
  const size_t fresh = std::min(recent.size(), ids.size());
  std::copy(recent.begin() + fresh, recent.end(), recent.begin());
  std::copy(ids.end() - fresh, ids.end(), recent.end() - fresh);
  return recent;
}

void SlotState::Give(Stream& stream, const GivenTokens& given) {
  SlotDrafts drafts{
      .draft_count = 0, .given_count = static_cast<int32_t>(given.token_ids.size()), .tokens = {}};
  CHECK_GE(drafts.given_count, 1) << "slot " << given.slot;
  CHECK_LE(drafts.given_count, kMaxDraftLen + 1) << "slot " << given.slot;
  std::copy(given.token_ids.begin(), given.token_ids.end(), drafts.tokens);
  Write(stream, arrays_.drafts + given.slot, drafts);
}

void SlotState::Release(Stream& stream, int slot) {
  Write(stream, arrays_.progress + slot,
        SlotProgress{.length = 0, .last_token = 0, .finished = 1, .active = 0, .thinking = 0});
  for (BlockTables& tables : tables_) tables.Clear(slot);
}

void SlotState::ApplyDelta(const BlockTableDelta& delta) {
  CHECK(delta.group >= 0 && static_cast<size_t>(delta.group) < tables_.size()) << "group " << delta.group;
  tables_[delta.group].Set(delta.slot, delta.first_index, delta.block_ids);
}

void SlotState::FlushTables(Stream& stream) {
  for (BlockTables& tables : tables_) tables.Flush(*device_, stream);
}

std::vector<GroupTable> SlotState::block_tables() const {
  std::vector<GroupTable> tables;
  for (const BlockTables& group : tables_) tables.push_back({group.device_entries(), group.stride()});
  return tables;
}

std::vector<SlotState::ImagePart> SlotState::ImageParts(int slot, bool counts_tokens) const {
  std::vector<ImagePart> parts;
  size_t offset = 0;
  const auto add = [&](auto* device, size_t count) {
    const size_t bytes = count * sizeof(*device);
    parts.push_back({device, bytes, offset});
    offset += (bytes + 63) / 64 * 64;
  };
  add(arrays_.constants + slot, 1);
  add(arrays_.progress + slot, 1);
  add(arrays_.drafts + slot, 1);
  if (shape_.level_count > 0) add(boundaries_.row(slot), size_t(shape_.level_count) * shape_.output_width);
  if (shape_.recent_len > 0) {
    add(recent_ids_ + int64_t{slot} * shape_.recent_len, shape_.recent_len);
    add(recent_hiddens_.row(int64_t{slot} * shape_.recent_len),
        size_t(shape_.recent_len) * shape_.output_width);
  }
  // Last, because it is the one part that may be absent.
  if (counts_tokens) add(arrays_.output_counts + size_t(slot) * shape_.vocab_size, shape_.vocab_size);
  return parts;
}

size_t SlotState::ImageBytes(const SlotStateShape& shape) {
  SlotState state;  // without arrays: only the sizes of the parts are used
  state.shape_ = shape;
  const std::vector<ImagePart> parts = state.ImageParts(0, /*counts_tokens=*/true);
  return parts.back().offset + parts.back().bytes;
}

// Calls copy(device, host, bytes) for each piece of the slot's arrays that lies in one frame.
template <class Copy>
void SlotState::ForEachPiece(int slot, bool counts_tokens, const HostFrames& image, const Copy& copy) const {
  for (const ImagePart& part : ImageParts(slot, counts_tokens)) {
    image.ForEachPiece(part.offset, part.bytes, [&](size_t done, uint8_t* frame, size_t bytes) {
      copy(static_cast<uint8_t*>(part.device) + done, frame, bytes);
    });
  }
}

SlotFacts SlotState::SwapOut(Stream& stream, int slot, const HostFrames& image) {
  ForEachPiece(slot, facts_[slot].counts_tokens, image, [&](uint8_t* device, uint8_t* host, size_t bytes) {
    device_->CopyToHost(stream, host, device, bytes);
  });
  return facts_[slot];
}

void SlotState::SwapIn(Stream& stream, int slot, const HostFrames& image, SlotFacts facts) {
  ForEachPiece(slot, facts.counts_tokens, image, [&](uint8_t* device, const uint8_t* host, size_t bytes) {
    device_->CopyPinnedToDevice(stream, device, host, bytes);
  });
  if (facts.counts_tokens) {
    device_->CopyToDevice(stream, arrays_.prompt_seen + size_t(slot) * shape_.vocab_size,
                          facts.prompt_seen.data(), facts.prompt_seen.size());
  }
  facts_[slot] = std::move(facts);
}

}  // namespace foredraft
