#include "engine/cache/slot_state.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

SlotConstants ConstantsOf(const SlotAdmission& admission) {
  const SamplingParams& sampling = admission.sampling;
  CHECK_LE(admission.stop_ids.size(), static_cast<size_t>(kMaxStopIds)) << "slot " << admission.slot;
  CHECK_LE(sampling.logit_bias.size(), static_cast<size_t>(kMaxLogitBiases)) << "slot " << admission.slot;
  CHECK_LE(admission.gate.trigger_ids.size(), static_cast<size_t>(kMaxTriggerIds))
      << "slot " << admission.slot;
  CHECK_LE(admission.thinking_budget.end_ids.size(), static_cast<size_t>(kMaxThoughtEndIds))
      << "slot " << admission.slot;
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
                          .thinking = admission.thinking,
                          .prompt_len = admission.prompt_len,
                          .length_limit = admission.length_limit,
                          .first_stop_position = admission.prompt_len + sampling.min_tokens,
                          .stop_id_count = static_cast<int32_t>(admission.stop_ids.size()),
                          .stop_ids = {},
                          .barred_stop_count = admission.gate.barred_stop_count,
                          .bias_count = static_cast<int32_t>(sampling.logit_bias.size()),
                          .biases = {},
                          .constrained = admission.gate.constrained ? 1 : 0,
                          .opens_thought = admission.gate.opens_thought ? 1 : 0,
                          .trigger_count = static_cast<int32_t>(admission.gate.trigger_ids.size()),
                          .trigger_ids = {},
                          .thought_limit = admission.thinking_budget.limit,
                          .thought_end_count = static_cast<int32_t>(admission.thinking_budget.end_ids.size()),
                          .thought_end_ids = {}};
  std::copy(admission.stop_ids.begin(), admission.stop_ids.end(), constants.stop_ids);
  std::copy(sampling.logit_bias.begin(), sampling.logit_bias.end(), constants.biases);
  std::copy(admission.gate.trigger_ids.begin(), admission.gate.trigger_ids.end(), constants.trigger_ids);
  std::copy(admission.thinking_budget.end_ids.begin(), admission.thinking_budget.end_ids.end(),
            constants.thought_end_ids);
  return constants;
}

}  // namespace

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
  for (const SlotRow& row : shape.rows) {
    ASSIGN_OR_RETURN(void* const rows, device.Allocate(slots * row.bytes()));
    state.registered_.push_back(rows);
  }
  state.host_.assign(slots, {});
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
                     .thought = {.phase = admission.phase},
                     .gate = admission.gate.first});
  Write(stream, arrays_.drafts + slot, SlotDrafts{});
  HostSlotState& host = host_[slot];
  host.wants_logprobs = admission.logprob_count >= 0;
  host.constrained = admission.gate.constrained;
  host.needs_first_mask = host.constrained && admission.gate.first == Gate::kBehind;
  host.counts_tokens = admission.sampling.counts_tokens();
  host.greedy = PlainArgmax(admission);
  host.rows.clear();
  for (size_t i = 0; i < shape_.rows.size(); ++i) {
    const SlotRow& row = shape_.rows[i];
    host.rows.emplace_back(row.on_host ? row.width : 0);
    if (shape_.poison) PoisonRow(stream, slot, i);
  }
  host.prompt_seen.clear();
  if (!host.counts_tokens) return;
  const size_t vocab = zero_counts_.size();
  host.prompt_seen.assign(vocab, 0);
  device_->CopyToDevice(stream, arrays_.output_counts + slot * vocab, zero_counts_.data(),
                        vocab * sizeof(int32_t));
  device_->CopyToDevice(stream, arrays_.prompt_seen + slot * vocab, host.prompt_seen.data(), vocab);
  CountPrompt(stream, slot, admission.reused_ids);
}

void SlotState::CountPrompt(Stream& stream, int slot, std::span<const int32_t> ids) {
  std::vector<uint8_t>& seen = host_[slot].prompt_seen;
  if (seen.empty() || ids.empty()) return;
  for (const int32_t id : ids) {
    CHECK(id >= 0 && static_cast<size_t>(id) < seen.size()) << "slot " << slot << ": token id " << id;
    seen[id] = 1;
  }
  device_->CopyToDevice(stream, arrays_.prompt_seen + slot * seen.size(), seen.data(), seen.size());
}

size_t SlotState::IndexOf(std::string_view name) const {
  const auto found = std::find_if(shape_.rows.begin(), shape_.rows.end(),
                                  [&](const SlotRow& row) { return row.name == name; });
  CHECK(found != shape_.rows.end()) << "no part registered " << name;
  return found - shape_.rows.begin();
}

Matrix<float> SlotState::rows(std::string_view name) const {
  const size_t index = IndexOf(name);
  return Dense(static_cast<float*>(registered_[index]), shape_.slot_count, shape_.rows[index].width);
}

int32_t* SlotState::int_rows(std::string_view name) const {
  return static_cast<int32_t*>(registered_[IndexOf(name)]);
}

std::vector<int32_t>& SlotState::host_row(std::string_view name, int slot) {
  const size_t index = IndexOf(name);
  CHECK(shape_.rows[index].on_host) << name;
  return host_[slot].rows[index];
}

void SlotState::PoisonRow(Stream& stream, int slot, size_t index) {
  const int64_t bytes = shape_.rows[index].bytes();
  const std::vector<uint8_t> nans(bytes, 0xff);  // -1 as an integer
  device_->CopyToDevice(stream, static_cast<uint8_t*>(registered_[index]) + slot * bytes, nans.data(), bytes);
}

void SlotState::TakeBoundary(Stream& stream, int slot, const KvCache& cache, int block) {
  for (const SlotRow& kept : shape_.rows) {
    if (!kept.at_boundaries) continue;
    device_->ops().copy_rows(stream, {.out = rows(kept.name).row_range(slot, 1),
                                      .x = cache.boundary(kept.name).row_range(block, 1),
                                      .rows = 1});
  }
}

void SlotState::Release(Stream& stream, int slot) {
  Write(stream, arrays_.progress + slot,
        SlotProgress{
            .length = 0, .last_token = 0, .finished = 1, .active = 0, .thought = {}, .gate = Gate::kBehind});
  for (BlockTables& tables : tables_) tables.Clear(slot);
}

void SlotState::ApplyDelta(const BlockTableDelta& delta) {
  CHECK(delta.group >= 0 && static_cast<size_t>(delta.group) < tables_.size()) << "group " << delta.group;
  tables_[delta.group].Set(delta.slot, delta.first_index, delta.block_ids);
}

void SlotState::FlushTables(Stream& stream) {
  for (BlockTables& tables : tables_) tables.Flush(*device_, stream);
}

std::vector<CacheGroupTable> SlotState::block_tables() const {
  std::vector<CacheGroupTable> tables;
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
  for (size_t i = 0; i < shape_.rows.size(); ++i) {
    const int width = shape_.rows[i].width;
    add(static_cast<int32_t*>(registered_[i]) + int64_t{slot} * width, width);
  }
  // The counts come last, because they alone may be absent.
  if (counts_tokens) add(arrays_.output_counts + size_t(slot) * shape_.vocab_size, shape_.vocab_size);
  return parts;
}

size_t SlotState::ImageBytes(const SlotStateShape& shape) {
  SlotState state;  // without arrays: only the sizes of the parts are used
  state.shape_ = shape;
  state.registered_.assign(shape.rows.size(), nullptr);
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

HostSlotState SlotState::SwapOut(Stream& stream, int slot, const HostFrames& image) {
  ForEachPiece(slot, host_[slot].counts_tokens, image, [&](uint8_t* device, uint8_t* host, size_t bytes) {
    device_->CopyToHost(stream, host, device, bytes);
  });
  return host_[slot];
}

void SlotState::SwapIn(Stream& stream, int slot, const HostFrames& image, HostSlotState state) {
  ForEachPiece(slot, state.counts_tokens, image, [&](uint8_t* device, const uint8_t* host, size_t bytes) {
    device_->CopyPinnedToDevice(stream, device, host, bytes);
  });
  if (state.counts_tokens) {
    device_->CopyToDevice(stream, arrays_.prompt_seen + size_t(slot) * shape_.vocab_size,
                          state.prompt_seen.data(), state.prompt_seen.size());
  }
  host_[slot] = std::move(state);
}

}  // namespace foredraft
