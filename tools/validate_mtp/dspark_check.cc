#include "tools/validate_mtp/dspark_check.h"

#include <algorithm>

#include "absl/strings/str_format.h"

namespace foredraft {
namespace {

using reference::BlockStreams;
using reference::NearTie;
using reference::Vector;

// Row `row` of rows of `width` values.
Vector RowOf(const std::vector<float>& rows, int row, int width) {
  const auto begin = rows.begin() + int64_t{row} * width;
  return {begin, begin + width};
}

}  // namespace

DSparkCheck::DSparkCheck(MtpDevice& device, const reference::Weights& exact,
                         const reference::Weights& rounded, int requests, int draft_len)
    : device_(device),
      config_(device.config()),
      block_size_(config_.v4->dspark->block_size),
      exact_(exact, config_),
      rounded_(rounded, config_),
      main_x_("dspark_main_x", absl::StrFormat("[%d, %d]", requests * (draft_len + 1), config_.hidden_size)),
      context_keys_("dspark_context_keys",
                    absl::StrFormat("[%d, %d]", requests * (draft_len + 1), config_.v4->head_dim)),
      stage_("dspark_stage", absl::StrFormat("[%d, %d]", requests * block_size_, device.width())),
      base_logits_("dspark_base_logits",
                   absl::StrFormat("[%d, %d]", requests * block_size_, config_.vocab_size)),
      bias_("dspark_markov_bias", absl::StrFormat("[%d]", config_.vocab_size)),
      full_block_("dspark_full_block",
                  absl::StrFormat("[%d, %d]", requests * block_size_, config_.vocab_size)) {}

void DSparkCheck::AddContext(const DeviceRows& rows) {
  const int tap_width = static_cast<int>(config_.v4->dspark->target_layer_ids.size()) * config_.hidden_size;
  const std::vector<float> taps = device_.Taps(rows.count());
  for (int stage = 0; stage < exact_.stage_count(); ++stage) {
    const MtpDevice::StageContext context = device_.ContextOf(stage, rows);
    for (int r = 0; r < rows.count(); ++r) {
      if (rows.slots[r] < 0) continue;
      const int slot = rows.slots[r], position = rows.positions[r];
      const Vector tapped = RowOf(taps, r, tap_width);
      const Vector main_x = RowOf(context.main_x, r, config_.hidden_size);
      const Vector key = RowOf(context.keys, r, config_.v4->head_dim);
      const Vector exact = exact_.MainX(tapped), rounded = rounded_.MainX(tapped);
      if (stage == 0) main_x_.Add(main_x, exact, rounded);
      context_keys_.Add(key, exact_.ContextKey(stage, main_x, position),
                        rounded_.ContextKey(stage, main_x, position));
      device_keys_[{slot, stage}][position] = key;
      exact_keys_[{slot, stage}][position] = exact_.ContextKey(stage, exact, position);
      rounded_keys_[{slot, stage}][position] = rounded_.ContextKey(stage, rounded, position);
    }
  }
}

// The keys of a stage that the block at `position` attends.
std::vector<Vector> DSparkCheck::ContextOf(const Keys& keys, int slot, int stage, int position) const {
  std::vector<Vector> context;
  for (int at = std::max(0, position - config_.v4->sliding_window); at < position; ++at) {
    context.push_back(keys.at({slot, stage}).at(at));
  }
  return context;
}

// What a stage of the device took for the block whose first row is `first`.
BlockStreams DSparkCheck::StreamsOf(const DeviceRows& blocks, int first) const {
  if (blocks.previous.empty()) return exact_.Seed(blocks.ids[first]);
  BlockStreams streams;
  for (int i = 0; i < block_size_; ++i) streams.push_back(RowOf(blocks.previous, first + i, device_.width()));
  return streams;
}

// Of the device's own input and context.
void DSparkCheck::CompareStage(int stage, const DeviceRows& blocks, const std::vector<float>& outputs) {
  for (int first = 0; first < blocks.count(); first += block_size_) {
    const int slot = blocks.slots[first], position = blocks.positions[first];
    const BlockStreams input = StreamsOf(blocks, first);
    const std::vector<Vector> context = ContextOf(device_keys_, slot, stage, position);
    const BlockStreams exact = exact_.Stage(stage, input, position, context);
    const BlockStreams rounded = rounded_.Stage(stage, input, position, context);
    for (int i = 0; i < block_size_; ++i) {
      const Vector given = RowOf(outputs, first + i, device_.width());
      NearTie(exact_.choices()[i], rounded_.choices()[i]) ? stage_.LeaveOut()
                                                          : stage_.Add(given, exact[i], rounded[i]);
    }
    AdvanceChain(stage, slot, position);
  }
}

// The next stage in the references on their own. A row attends all rows of its block, so one whose experts
// are uncertain makes the next stage uncertain for all of them.
void DSparkCheck::AdvanceChain(int stage, int slot, int position) {
  Chain& chain = chains_.at(slot);
  if (!chain.uncertain.empty()) {
    for (int i = 0; i < block_size_; ++i) chain.uncertain.insert(i);
  }
  chain.exact = exact_.Stage(stage, chain.exact, position, ContextOf(exact_keys_, slot, stage, position));
  chain.rounded =
      rounded_.Stage(stage, chain.rounded, position, ContextOf(rounded_keys_, slot, stage, position));
  for (int i = 0; i < block_size_; ++i) {
    if (NearTie(exact_.choices()[i], rounded_.choices()[i])) chain.uncertain.insert(i);
  }
}

void DSparkCheck::CompareLogits(const DeviceRows& blocks, const std::vector<float>& logits) {
  for (int r = 0; r < blocks.count(); ++r) {
    const int slot = blocks.slots[r], row = r % block_size_;
    const Vector given = RowOf(logits, r, config_.vocab_size);
    const Vector streams = RowOf(blocks.previous, r, device_.width());
    base_logits_.Add(given, exact_.Logits(streams), rounded_.Logits(streams));
    const Chain& chain = chains_.at(slot);
    if (row == 0) logits_[slot].clear();
    logits_[slot].push_back(exact_.Logits(chain.exact[row]));
    chain.uncertain.contains(row)
        ? full_block_.LeaveOut()
        : full_block_.Add(given, logits_[slot][row], rounded_.Logits(chain.rounded[row]));
  }
}

std::vector<float> DSparkCheck::RunBlocks(const DeviceRows& blocks) {
  DeviceRows rows = blocks;
  for (int first = 0; first < rows.count(); first += block_size_) {
    chains_[rows.slots[first]] = {
        .exact = exact_.Seed(rows.ids[first]), .rounded = rounded_.Seed(rows.ids[first]), .uncertain = {}};
  }
  for (int stage = 0; stage < exact_.stage_count(); ++stage) {
    std::vector<float> outputs = device_.Stage(stage, rows);
    CompareStage(stage, rows, outputs);
    rows.previous = std::move(outputs);
  }
  const std::vector<float> logits = device_.Logits(exact_.stage_count(), rows.previous);
  CompareLogits(rows, logits);
  return logits;
}

std::vector<float> DSparkCheck::AddBias(std::vector<float> logits, int before) {
  const std::vector<float> bias = device_.TokenBias({before});
  bias_.Add(bias, exact_.Bias(before), rounded_.Bias(before));
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += bias[i];
  return logits;
}

void DSparkCheck::AddDraft(int slot, int row, int before, int draft) {
  ++drafts_;
  if (chains_.at(slot).uncertain.contains(row)) {
    ++drafts_left_out_;
    return;
  }
  Vector logits = logits_.at(slot)[row];
  const Vector bias = exact_.Bias(before);
  for (size_t i = 0; i < logits.size(); ++i) logits[i] += bias[i];
  draft_gap_ = std::max(draft_gap_, *std::max_element(logits.begin(), logits.end()) - logits[draft]);
}

std::vector<Boundary> DSparkCheck::Results() const {
  // A draft is the device's best token. By the reference it may be second to one that is nearly as good: both
  // logits may be off, each by what the block and the bias may be.
  const double unit = full_block_.root_mean_square();
  Boundary drafts = {.name = "drafts",
                     .shape = "one per sequence and row",
                     .rows = drafts_ - drafts_left_out_,
                     .left_out = drafts_left_out_};
  drafts.difference = draft_gap_ / unit;
  drafts.allowed =
      2 * (full_block_.result().allowed + bias_.result().allowed * bias_.root_mean_square() / unit);
  return {main_x_.result(), context_keys_.result(), stage_.result(), base_logits_.result(), bias_.result(),
          drafts,           full_block_.result()};
}

}  // namespace foredraft
