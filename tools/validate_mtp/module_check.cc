#include "tools/validate_mtp/module_check.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "absl/strings/str_format.h"
#include "tools/validate_mtp/indexer_reference.h"

namespace foredraft {
namespace {

using reference::MtpRow;
using reference::Vector;

Vector Doubles(const float* values, int count) { return {values, values + count}; }

}  // namespace

ModuleCheck::ModuleCheck(MtpDevice& device, const reference::Weights& exact,
                         const reference::Weights& rounded, int rows)
    : device_(device),
      config_(device.config()),
      layer_(exact, rounded, config_),
      forward_(exact, rounded, config_),
      chain_(exact, rounded, config_),
      seeded_("mtp_seed_hc_stack", absl::StrFormat("[%d, %d]", rows, device.width())),
      projected_("mtp_projection_impl", absl::StrFormat("[%d, %d]", rows, device.width())),
      layered_("mtp_decoder_layer_tail", absl::StrFormat("[%d, %d]", rows, device.width())),
      forwarded_("mtp_forward_tail", absl::StrFormat("[%d, %d]", rows, device.width())),
      logits_("mtp_compute_logits_tail", absl::StrFormat("[%d, %d]", rows, config_.vocab_size)),
      full_chain_("mtp_full_chain", absl::StrFormat("[%d, %d]", rows, config_.vocab_size)),
      selected_("mtp_selected_positions", absl::StrFormat("[%d, %d]", rows, config_.index_topk)) {}

ModuleCheck::Lists ModuleCheck::ListsOf(const DeviceRows& rows) const {
  Lists lists(rows.count());
  if (!device_.selects()) return lists;
  const std::vector<std::vector<int32_t>> selected = device_.SelectedPositions(rows);
  for (int r = 0; r < rows.count(); ++r) {
    if (rows.slots[r] < 0 || rows.positions[r] <= config_.index_topk) continue;
    const auto end = std::find(selected[r].begin(), selected[r].end(), -1);
    lists[r].assign(selected[r].begin(), end);
  }
  return lists;
}

// If the device's list is not ascending, the reference selects positions itself, and CompareSelection reports
// the list.
MtpRow ModuleCheck::RowOf(const DeviceRows& rows, int r, const Lists& lists) const {
  const size_t at = static_cast<size_t>(r) * device_.width();
  const std::vector<int>& list = lists[r];
  const bool ascends = std::adjacent_find(list.begin(), list.end(), std::greater_equal<>()) == list.end();
  const bool seen = list.empty() || (list.front() >= 1 && list.back() <= rows.positions[r]);
  return {.sequence = rows.slots[r],
          .position = rows.positions[r],
          .token = rows.ids[r],
          .previous = Doubles(rows.previous.data() + at, device_.width()),
          .attended = ascends && seen ? list : std::vector<int>(),
          .decode_form = !rows.prefill || !list.empty()};
}

void ModuleCheck::CompareParts(const DeviceRows& rows) {
  const int width = device_.width(), hidden = config_.hidden_size;
  const std::vector<float> seeded = MtpSeedHcStack(device_, rows);
  const std::vector<float> projected = MtpProjectionImpl(device_, rows);
  const std::vector<float> layered = MtpDecoderLayerTail(device_, rows, projected);
  for (int r = 0; r < rows.count(); ++r) {
    if (rows.slots[r] < 0) continue;
    const size_t at = static_cast<size_t>(r) * width;
    const MtpRow row = RowOf(rows, r, Lists(rows.count()));
    Vector copies;
    for (int i = 0; i < width; ++i) copies.push_back(row.previous[i % hidden]);
    seeded_.Add(seeded.data() + at, copies, copies);
    projected_.Add(projected.data() + at, layer_.exact->Project(row), layer_.rounded->Project(row));
    const Vector input = Doubles(projected.data() + at, width);
    const Vector exact = layer_.exact->Layer(row, input), rounded = layer_.rounded->Layer(row, input);
    layer_.NearTie() ? layered_.LeaveOut() : layered_.Add(layered.data() + at, exact, rounded);
  }
}

void ModuleCheck::CompareForward(const MtpRow& row, const float* output, const float* logits) {
  const Vector exact = forward_.exact->Forward(row), rounded = forward_.rounded->Forward(row);
  forward_.NearTie() ? forwarded_.LeaveOut() : forwarded_.Add(output, exact, rounded);
  const Vector given = Doubles(output, device_.width());
  logits_.Add(logits, forward_.exact->Logits(given), forward_.rounded->Logits(given));
}

// Uses the scores of the last CompareForward. If a recycled module shares lists, its rows attend the
// positions selected by the row from which the first draft came.
void ModuleCheck::CompareSelection(const DeviceRows& rows, int r, const Lists& lists) {
  const Vector& scores = forward_.exact->position_scores();
  if (scores.empty()) return;
  if (!config_.index_share_for_mtp_iteration || rows.list_rows.empty()) {
    return selected_.Add(reference::SelectionGap(scores, lists[r], config_.index_topk), scores,
                         forward_.rounded->position_scores());
  }
  selected_.AddShared(lists[r] == first_lists_[rows.list_rows[r]]);
}

// Keeps the lists that rows of a recycled module may share. A row that attends all positions that it sees
// gets a list of these.
void ModuleCheck::KeepLists(const DeviceRows& rows, Lists lists) {
  first_lists_ = std::move(lists);
  for (int r = 0; r < rows.count(); ++r) {
    if (rows.slots[r] < 0 || !first_lists_[r].empty()) continue;
    first_lists_[r].resize(rows.positions[r]);
    std::iota(first_lists_[r].begin(), first_lists_[r].end(), 1);
  }
}

void ModuleCheck::CompareChain(MtpRow row, bool recycled, const float* logits) {
  const int slot = row.sequence;
  Outputs& own = own_[slot];
  if (recycled) row.previous = own.exact;
  const Vector exact = chain_.exact->Forward(row);
  if (recycled) row.previous = own.rounded;
  own = {exact, chain_.rounded->Forward(row)};
  if (chain_.NearTie()) uncertain_.insert(slot);
  own_logits_[slot] = chain_.exact->Logits(own.exact);
  uncertain_.contains(slot) ? full_chain_.LeaveOut()
                            : full_chain_.Add(logits, own_logits_[slot], chain_.rounded->Logits(own.rounded));
}

MtpChainResult ModuleCheck::Run(const DeviceRows& rows, bool recycled) {
  const int width = device_.width(), vocab = config_.vocab_size;
  MtpChainResult result = MtpFullChain(device_, rows);
  Lists lists = ListsOf(rows);
  if (device_.has_parts()) CompareParts(rows);
  for (int r = 0; r < rows.count(); ++r) {
    if (rows.slots[r] < 0) continue;
    if (!recycled) uncertain_.erase(rows.slots[r]);  // every row takes an output of the target
    const MtpRow row = RowOf(rows, r, lists);
    const float* const logits = result.logits.data() + static_cast<size_t>(r) * vocab;
    CompareForward(row, result.outputs.data() + static_cast<size_t>(r) * width, logits);
    CompareSelection(rows, r, lists);
    CompareChain(row, recycled, logits);
  }
  if (!recycled && device_.selects()) KeepLists(rows, std::move(lists));
  return result;
}

void ModuleCheck::AddDraft(int slot, int draft) {
  ++drafts_;
  if (uncertain_.contains(slot)) {
    ++drafts_left_out_;
    return;
  }
  const Vector& logits = own_logits_.at(slot);
  draft_gap_ = std::max(draft_gap_, *std::max_element(logits.begin(), logits.end()) - logits[draft]);
}

std::vector<Boundary> ModuleCheck::Results() const {
  std::vector<Boundary> results;
  if (device_.has_parts()) results = {seeded_.result(), projected_.result(), layered_.result()};
  if (selected_.result().rows > 0) results.push_back(selected_.result());
  results.insert(results.end(), {forwarded_.result(), logits_.result()});
  // A draft is the device's best token. The reference may rank it second by a small margin, because both
  // logits may be off.
  Boundary drafts = {.name = "drafts",
                     .shape = "one per sequence and forward",
                     .rows = drafts_,
                     .left_out = drafts_left_out_};
  drafts.difference = draft_gap_ / full_chain_.root_mean_square();
  drafts.allowed = 2 * full_chain_.result().allowed;
  results.push_back(drafts);
  results.push_back(full_chain_.result());
  return results;
}

}  // namespace foredraft
