#include "tools/validate_mtp/eagle3_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/model/draft_head.h"
#include "engine/spec/eagle3/eagle3_description.h"
#include "tools/validate_mtp/eagle3_reference.h"
#include "tools/validate_mtp/eagle3_served.h"
#include "tools/validate_mtp/mtp_device.h"
#include "tools/validate_mtp/serving_drafter.h"

namespace foredraft {
namespace {

using reference::Eagle3Reference;
using reference::Eagle3References;
using reference::HeadRow;
using reference::Vector;
using reference::Weights;

Vector Row(const std::vector<float>& rows, size_t row, size_t width) {
  return {rows.begin() + static_cast<std::ptrdiff_t>(row * width),
          rows.begin() + static_cast<std::ptrdiff_t>((row + 1) * width)};
}

class Eagle3Chain {
 public:
  Eagle3Chain(MtpDevice& device, Eagle3References own, Eagle3References full, const MtpCheckOptions& options)
      : device_(device), own_(std::move(own)), full_(std::move(full)), options_(options) {}

  void Run(const std::vector<std::vector<int32_t>>& prompts) {
    Prefill(prompts);
    for (int step = 0; step < options_.steps; ++step) DecodeStep();
  }

  std::vector<Boundary> Results() const {
    return {fused_.result(), layer_.result(), logits_.result(), full_chain_.result(),
            WithNearTies(drafts_.result(), near_ties_)};
  }

 private:
  size_t width() const { return static_cast<size_t>(device_.config().hidden_size); }
  size_t vocab_size() const { return static_cast<size_t>(device_.config().vocab_size); }
  const DraftHead& head() const { return *device_.config().draft_head; }

  // Runs rows of the target. Keeps each row's f, and the token after each sequence's last row.
  void Target(const DeviceRows& rows) {
    const std::vector<float> outputs = device_.Run(MtpDevice::Part::kTarget, rows);
    const std::vector<int32_t> best = BestTokens(device_.Logits(0, outputs), device_.config().vocab_size);
    const std::vector<float> all = device_.Run(MtpDevice::Part::kFused, rows);
    for (size_t row = 0; row < rows.ids.size(); ++row) {
      std::vector<Vector> taps;
      for (const std::vector<float>& tap : device_.read_layers()) taps.push_back(Row(tap, row, width()));
      const Vector fused = Row(all, row, width());
      fused_.Add(fused, own_.exact.Fuse(taps), own_.rounded.Fuse(taps));
      last_fused_[rows.slots[row]] = fused;
      next_[rows.slots[row]] = best[row];
      all_fused_[rows.slots[row]].push_back(fused);
    }
  }

  void Prefill(const std::vector<std::vector<int32_t>>& prompts) {
    DeviceRows rows = {.prefill = true}, of_head = {.prefill = true};
    for (size_t i = 0; i < prompts.size(); ++i) {
      for (size_t position = 0; position < prompts[i].size(); ++position) {
        rows.ids.push_back(prompts[i][position]);
        rows.slots.push_back(static_cast<int32_t>(i));
        rows.positions.push_back(static_cast<int32_t>(position));
      }
      lengths_.push_back(static_cast<int32_t>(prompts[i].size()));
    }
    last_fused_.resize(prompts.size());
    next_.resize(prompts.size());
    all_fused_.resize(prompts.size());
    Target(rows);
    for (size_t row = 0; row < rows.ids.size(); ++row) {
      const int32_t slot = rows.slots[row], position = rows.positions[row];
      if (position == 0) continue;
      of_head.ids.push_back(rows.ids[row]);
      of_head.slots.push_back(slot);
      of_head.positions.push_back(position);
      const Vector& previous = all_fused_[slot][position - 1];
      of_head.previous.insert(of_head.previous.end(), previous.begin(), previous.end());
    }
    const std::vector<float> outputs = device_.Run(MtpDevice::Part::kForward, of_head);
    for (size_t row = 0; row < of_head.ids.size(); ++row) CompareRow(of_head, row, outputs);
  }

  // Compares one row with the references that take the device's own input. If it is not a draft's row, the
  // full chain runs it, too.
  void CompareRow(const DeviceRows& rows, size_t row, const std::vector<float>& outputs) {
    const HeadRow input = {.sequence = rows.slots[row],
                           .position = rows.positions[row],
                           .token = rows.ids[row],
                           .previous = Row(rows.previous, row, width()),
                           .decode_form = !rows.prefill};
    const Vector output = Row(outputs, row, width());
    layer_.Add(output, own_.exact.Forward(input), own_.rounded.Forward(input));
    if (input.position <= lengths_[input.sequence]) {  // no draft's row
      full_exact_[input.sequence] = full_.exact.Forward(input);
      full_rounded_[input.sequence] = full_.rounded.Forward(input);
    }
  }

  // Compares the logits of tokens in the head's own vocabulary; all other tokens must have -infinity.
  std::vector<int32_t> Drafts(const std::vector<float>& outputs) {
    const std::vector<float> logits = device_.Logits(1, outputs);
    const std::vector<int32_t>& tokens = head().token_ids;
    for (size_t row = 0; row < lengths_.size(); ++row) {
      Vector own, all = Row(logits, row, vocab_size());
      for (int i = 0; i < head().draft_vocab_size; ++i) {
        double& logit = all[tokens.empty() ? i : tokens[i]];
        own.push_back(logit);
        if (!tokens.empty()) logit = -std::numeric_limits<double>::infinity();
      }
      if (!tokens.empty() && std::any_of(all.begin(), all.end(), [](double x) { return !std::isinf(x); })) {
        own.front() = std::numeric_limits<double>::quiet_NaN();  // another token has a logit
      }
      const Vector output = Row(outputs, row, width());
      logits_.Add(own, own_.exact.Logits(output), own_.rounded.Logits(output));
    }
    return BestTokens(logits, device_.config().vocab_size);
  }

  // Compares the device's draft with that of the full chain: another token is right only where rounding alone
  // may have chosen it. A logit of the device is off by at most twice the error that rounding makes in the
  // reference, and two tokens change places if the difference of their logits changes sign.
  void CompareDraft(int32_t token, const Vector& exact_output, const Vector& rounded_output) {
    const Vector exact = full_.exact.Logits(exact_output), rounded = full_.rounded.Logits(rounded_output);
    const std::vector<int32_t>& tokens = head().token_ids;
    const auto own = tokens.empty() ? token : std::find(tokens.begin(), tokens.end(), token) - tokens.begin();
    const auto best = std::max_element(exact.begin(), exact.end()) - exact.begin();
    double shift = 0;
    for (size_t i = 0; i < exact.size(); ++i) shift = std::max(shift, std::abs(exact[i] - rounded[i]));
    const bool near_tie = own != best && exact[best] - exact[own] <= 4 * shift;
    near_ties_ += near_tie ? 1 : 0;
    drafts_.Add(std::vector<int64_t>{near_tie ? best : own}, std::vector<int64_t>{best});
  }

  // Runs row P of every sequence, then the recycled rows after it.
  void DecodeStep() {
    DeviceRows rows;
    for (size_t i = 0; i < lengths_.size(); ++i) {
      rows.ids.push_back(next_[i]);
      rows.slots.push_back(static_cast<int32_t>(i));
      rows.positions.push_back(lengths_[i]);
      rows.previous.insert(rows.previous.end(), last_fused_[i].begin(), last_fused_[i].end());
    }
    const DeviceRows of_target = rows;
    for (int draft = 1;; ++draft) {
      const std::vector<float> outputs = device_.Run(MtpDevice::Part::kForward, rows);
      for (size_t i = 0; i < lengths_.size(); ++i) {
        CompareRow(rows, i, outputs);
        if (draft > 1) {
          HeadRow input = {.sequence = static_cast<int>(i),
                           .position = rows.positions[i],
                           .token = rows.ids[i],
                           .previous = full_exact_[i],
                           .decode_form = true};
          full_exact_[i] = full_.exact.Forward(input);
          input.previous = full_rounded_[i];
          full_rounded_[i] = full_.rounded.Forward(input);
        }
        full_chain_.Add(Row(outputs, i, width()), full_exact_[i], full_rounded_[i]);
      }
      rows.ids = Drafts(outputs);
      for (size_t i = 0; i < lengths_.size(); ++i)
        CompareDraft(rows.ids[i], full_exact_[i], full_rounded_[i]);
      if (draft == options_.draft_len) break;
      for (int32_t& position : rows.positions) ++position;
      rows.previous = outputs;
    }
    Target(of_target);
    for (int32_t& length : lengths_) ++length;
  }

  MtpDevice& device_;
  Eagle3References own_, full_;
  const MtpCheckOptions options_;
  std::vector<int32_t> lengths_;  // by sequence: the position of its next row
  std::vector<int32_t> next_;     // the token there
  std::vector<Vector> last_fused_;
  std::vector<std::vector<Vector>> all_fused_;  // of each sequence, by position
  std::vector<Vector> full_exact_ = std::vector<Vector>(kChainRequests);
  std::vector<Vector> full_rounded_ = std::vector<Vector>(kChainRequests);
  RealBoundary fused_{"eagle3_fused", "[R, D]"};
  RealBoundary layer_{"eagle3_layer", "[R, D]"};
  RealBoundary logits_{"eagle3_logits", "[B, Vd]"};
  RealBoundary full_chain_{"eagle3_full_chain", "[B, D]"};
  CountBoundary drafts_{"eagle3_drafts", "[B]"};
  int64_t near_ties_ = 0;
};

struct HeadWeights {
  Weights exact;
  Weights rounded;
};

absl::StatusOr<HeadWeights> OpenHead(const DraftHead& head) {
  ASSIGN_OR_RETURN(Checkpoint one, OpenEagle3(head.dir));
  ASSIGN_OR_RETURN(Checkpoint other, OpenEagle3(head.dir));
  return HeadWeights{Weights(std::move(one), head.layer, Weights::Precision::kExact),
                     Weights(std::move(other), head.layer, Weights::Precision::kBf16)};
}

}  // namespace

absl::StatusOr<MtpCheckResult> CheckEagle3Chain(const std::string& dir, const ModelConfig& config,
                                                Device& device, const LoadedWeights& weights,
                                                const MtpCheckOptions& options) {
  ASSIGN_OR_RETURN(const Prompts prompts, ChainPrompts(config, options));
  ASSIGN_OR_RETURN(const Weights exact, Weights::Open(dir, config, Weights::Precision::kExact));
  ASSIGN_OR_RETURN(const Weights rounded, Weights::Open(dir, config, Weights::Precision::kBf16));
  const DraftHead& head = *config.draft_head;
  ASSIGN_OR_RETURN(const HeadWeights of_head, OpenHead(head));
  const auto references = [&] {
    return Eagle3References{Eagle3Reference(head, of_head.exact, exact),
                            Eagle3Reference(head, of_head.rounded, rounded)};
  };
  const ServingCheckOptions serving = {.draft_len = options.draft_len, .steps = options.steps};
  ASSIGN_OR_RETURN(const std::unique_ptr<ServingEngine> engine,
                   ServingEngine::Create(config, weights, prompts, serving));
  int rows = 0;
  for (const std::vector<int32_t>& prompt : prompts) rows += static_cast<int>(prompt.size());
  ASSIGN_OR_RETURN(const std::unique_ptr<MtpDevice> on_device,
                   MtpDevice::Create(device, config, weights,
                                     {.slots = static_cast<int>(prompts.size()),
                                      .positions = engine->position_count(),
                                      .rows = std::max(rows, engine->max_seq_len())}));
  Eagle3Chain chain(*on_device, references(), references(), options);
  chain.Run(prompts);
  MtpCheckResult result = {.boundaries = chain.Results()};
  ASSIGN_OR_RETURN(result.boundaries.emplace_back(),
                   CheckSampledDrafts(*engine, *on_device, references(), prompts, serving));
  for (const Weights* const each : {&exact, &rounded, &of_head.exact, &of_head.rounded}) {
    RETURN_IF_ERROR(each->status());
  }
  ASSIGN_OR_RETURN(const std::vector<Boundary> served,
                   CheckServingDrafter(device, config, weights, prompts, serving));
  result.boundaries.insert(result.boundaries.end(), served.begin(), served.end());
  for (const std::vector<int32_t>& prompt : prompts) {
    result.prompt_lens.push_back(static_cast<int>(prompt.size()));
  }
  return result;
}

}  // namespace foredraft
