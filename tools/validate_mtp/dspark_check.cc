#include "tools/validate_mtp/dspark_check.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"

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
      block_size_(config_.dspark->block_size),
      exact_(exact, config_),
      rounded_(rounded, config_),
      taps_("dspark_taps",
            absl::StrFormat("[%d, %d]", requests * (draft_len + 1),
                            static_cast<int>(config_.dspark->target_layer_ids.size()) * config_.hidden_size)),
      main_x_("dspark_main_x", absl::StrFormat("[%d, %d]", requests * (draft_len + 1), config_.hidden_size)),
      context_keys_("dspark_context_keys",
                    absl::StrFormat("[%d, %d]", requests * (draft_len + 1), V4ShapeOf(config_).head_dim)),
      stage_("dspark_stage", absl::StrFormat("[%d, %d]", requests * block_size_, device.width())),
      base_logits_("dspark_base_logits",
                   absl::StrFormat("[%d, %d]", requests * block_size_, config_.vocab_size)),
      bias_("dspark_markov_bias", absl::StrFormat("[%d]", config_.vocab_size)),
      full_block_("dspark_full_block",
                  absl::StrFormat("[%d, %d]", requests * block_size_, config_.vocab_size)) {}

void DSparkCheck::AddContext(const DeviceRows& rows) {
  const int tap_width = static_cast<int>(config_.dspark->target_layer_ids.size()) * config_.hidden_size;
  const std::vector<float> taps = device_.Taps(rows.count()), main_x = device_.MainX(rows.count());
  std::vector<std::vector<float>> keys;
  for (int stage = 0; stage < exact_.stage_count(); ++stage) keys.push_back(device_.StageKeys(stage, rows));
  const std::vector<std::vector<float>> tapped = device_.TappedStreams(rows);  // overwrites taps and main_x
  for (int r = 0; r < rows.count(); ++r) {
    if (rows.slots[r] < 0) continue;
    const Vector row_taps = RowOf(taps, r, tap_width);
    ContextRow row = {.slot = rows.slots[r],
                      .position = rows.positions[r],
                      .main_x = RowOf(main_x, r, config_.hidden_size)};
    CompareTaps(r, row_taps, tapped, row);
    main_x_.Add(row.main_x, exact_.MainX(row_taps), rounded_.MainX(row_taps));
    for (int stage = 0; stage < exact_.stage_count(); ++stage) {
      CompareKey(row, stage, RowOf(keys[stage], r, V4ShapeOf(config_).head_dim));
    }
  }
}

// Both references take the outputs of the tapped layers; the rounding one then continues with its own rounded
// taps.
void DSparkCheck::CompareTaps(int r, const Vector& taps, const std::vector<std::vector<float>>& tapped,
                              ContextRow& row) {
  Vector exact, rounded;
  for (const std::vector<float>& streams : tapped) {
    const Vector of_row = RowOf(streams, r, device_.width());
    const Vector exact_tap = exact_.Tap(of_row), rounded_tap = rounded_.Tap(of_row);
    exact.insert(exact.end(), exact_tap.begin(), exact_tap.end());
    rounded.insert(rounded.end(), rounded_tap.begin(), rounded_tap.end());
  }
  taps_.Add(taps, exact, rounded);
  row.exact_main_x = exact_.MainX(exact);
  row.rounded_main_x = rounded_.MainX(rounded);
}

void DSparkCheck::CompareKey(const ContextRow& row, int stage, const Vector& key) {
  context_keys_.Add(key, exact_.ContextKey(stage, row.main_x, row.position),
                    rounded_.ContextKey(stage, row.main_x, row.position));
  const std::pair<int, int> at = {row.slot, stage};
  device_keys_[at][row.position] = key;
  exact_keys_[at][row.position] = exact_.ContextKey(stage, row.exact_main_x, row.position);
  rounded_keys_[at][row.position] = rounded_.ContextKey(stage, row.rounded_main_x, row.position);
}

// The keys of a stage that the block at `position` attends.
std::vector<Vector> DSparkCheck::ContextOf(const Keys& keys, int slot, int stage, int position) const {
  std::vector<Vector> context;
  for (int at = std::max(0, position - V4ShapeOf(config_).sliding_window); at < position; ++at) {
    context.push_back(keys.at({slot, stage}).at(at));
  }
  return context;
}

// The device's input of a stage for the block whose first row is `first`.
BlockStreams DSparkCheck::StreamsOf(const DeviceRows& blocks, int first) const {
  if (blocks.previous.empty()) return exact_.Seed(blocks.ids[first]);
  BlockStreams streams;
  for (int i = 0; i < block_size_; ++i) streams.push_back(RowOf(blocks.previous, first + i, device_.width()));
  return streams;
}

// Compares a stage with the references', given the device's own input and context.
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

// Runs the next stage in the references that take their own outputs. A row attends all rows of its block, so
// a row with uncertain experts makes the next stage uncertain for all of them.
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
  const std::vector<float> bias = device_.MarkovBias({before});
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
  // A draft is the device's best token. The reference may rank it second by a small margin, because both
  // logits may be off, each by the errors of block and bias.
  const double unit = full_block_.root_mean_square();
  Boundary drafts = {.name = "drafts",
                     .shape = "one per sequence and row",
                     .rows = drafts_ - drafts_left_out_,
                     .left_out = drafts_left_out_};
  drafts.difference = draft_gap_ / unit;
  drafts.allowed =
      2 * (full_block_.result().allowed + bias_.result().allowed * bias_.root_mean_square() / unit);
  return {taps_.result(), main_x_.result(), context_keys_.result(), stage_.result(), base_logits_.result(),
          bias_.result(), drafts,           full_block_.result()};
}

}  // namespace foredraft
