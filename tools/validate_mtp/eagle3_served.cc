#include "tools/validate_mtp/eagle3_served.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/model/draft_head.h"
#include "tools/validate_mtp/choice_reference.h"

namespace foredraft {
namespace {

using reference::Choices;
using reference::Eagle3References;
using reference::HeadRow;
using reference::Vector;

// One request of each kind: filters by mass with penalties, filters by rank with a bias, greedy with
// penalties.
std::vector<SamplingParams> RequestsOf(size_t count, int vocab_size) {
  const SamplingParams kinds[] = {
      {.temperature = 0.8f,
       .top_p = 0.95f,
       .repetition_penalty = 1.1f,
       .presence_penalty = 0.2f,
       .frequency_penalty = 0.1f},
      {.temperature = 1.3f,
       .top_k = 20,
       .min_p = 0.01f,
       .frequency_penalty = 0.5f,
       .logit_bias = {{vocab_size / 3, 2.0f}, {vocab_size / 2, -3.0f}}},
      {.repetition_penalty = 1.3f, .presence_penalty = 0.5f},
  };
  std::vector<SamplingParams> requests;
  for (size_t i = 0; i < count; ++i) requests.push_back(kinds[i % std::size(kinds)]);
  return requests;
}

class SampledDrafts {
 public:
  SampledDrafts(ServingEngine& engine, MtpDevice& device, Eagle3References references, const Prompts& prompts,
                const ServingCheckOptions& options)
      : engine_(engine),
        device_(device),
        references_(std::move(references)),
        prompts_(prompts),
        sampling_(RequestsOf(prompts.size(), device.config().vocab_size)),
        drafts_("serving sampled drafts", absl::StrFormat("[%d] per sequence and step", options.draft_len)) {
    for (size_t i = 0; i < prompts.size(); ++i) {
      sampling_[i].seed = i;  // the seed that ServingEngine gives it
      requests_.push_back({.tokens = prompts[i], .steps = {}});
    }
  }

  absl::Status Run() {
    RETURN_IF_ERROR(engine_.Run(
        prompts_, sampling_, [](int /*iteration*/) {},
        [&](int request, const SlotResult& result) { Note(requests_[request], result); }));
    for (size_t i = 0; i < requests_.size(); ++i) Compare(static_cast<int>(i));
    return absl::OkStatus();
  }

  Boundary Result() const { return WithNearTies(drafts_.result(), near_ties_); }

 private:
  struct Step {
    int last;  // P: the drafts are for positions P + 1 ..
    std::vector<int32_t> drafts;
  };
  struct Served {
    std::vector<int32_t> tokens;  // committed: the prompt, then what was emitted
    std::vector<Step> steps;
  };
  // Both references' outputs for a sequence's last row.
  struct Outputs {
    Vector exact;
    Vector rounded;
  };

  void Note(Served& request, const SlotResult& result) {
    request.tokens.insert(request.tokens.end(), result.token_ids.begin(), result.token_ids.end());
    const SlotDrafts drafts = engine_.ReadDrafts(result.slot);
    request.steps.push_back({.last = static_cast<int>(request.tokens.size()) - 1,
                             .drafts = {drafts.tokens, drafts.tokens + drafts.draft_count}});
  }

  // [position][T] of [D]: the residual streams that the head reads, from a run of the device's target over
  // the committed tokens alone.
  std::vector<std::vector<Vector>> TapsOf(int index) {
    const std::vector<int32_t>& tokens = requests_[index].tokens;
    const int count = static_cast<int>(tokens.size()), prompt_len = PromptLen(index);
    const auto width = static_cast<size_t>(device_.config().hidden_size);
    std::vector<std::vector<Vector>> taps(count);
    device_.PoisonCache();
    for (const auto& [begin, end] : {std::pair(0, prompt_len), std::pair(prompt_len, count)}) {
      DeviceRows rows = {.prefill = begin == 0};
      for (int position = begin; position < end; ++position) {
        rows.ids.push_back(tokens[position]);
        rows.slots.push_back(0);
        rows.positions.push_back(position);
      }
      device_.Run(MtpDevice::Part::kTarget, rows);
      for (const std::vector<float>& layer : device_.read_layers()) {
        for (int position = begin; position < end; ++position) {
          const auto row = layer.begin() + static_cast<std::ptrdiff_t>((position - begin) * width);
          taps[position].emplace_back(row, row + static_cast<std::ptrdiff_t>(width));
        }
      }
    }
    return taps;
  }

  void Compare(int index) {
    const Served& request = requests_[index];
    const std::vector<std::vector<Vector>> taps = TapsOf(index);
    Outputs committed;
    int position = 0;
    for (const Step& step : request.steps) {
      while (position < step.last) {
        ++position;
        const Outputs fused = {references_.exact.Fuse(taps[position - 1]),
                               references_.rounded.Fuse(taps[position - 1])};
        committed = Row(index, position, request.tokens[position], fused);
      }
      CompareStep(index, step, committed);
    }
  }

  Outputs Row(int index, int position, int token, const Outputs& previous) {
    HeadRow row = {.sequence = index,
                   .position = position,
                   .token = token,
                   .previous = previous.exact,
                   .decode_form = position >= PromptLen(index)};
    Outputs outputs = {.exact = references_.exact.Forward(row), .rounded = {}};
    row.previous = previous.rounded;
    outputs.rounded = references_.rounded.Forward(row);
    return outputs;
  }

  // Compares a step's drafts. The reference continues with the engine's drafts.
  void CompareStep(int index, const Step& step, Outputs outputs) {
    const std::vector<int32_t>& tokens = requests_[index].tokens;
    std::vector<int32_t> output(tokens.begin() + PromptLen(index), tokens.begin() + step.last + 1);
    for (size_t i = 0; i < step.drafts.size(); ++i) {
      const int position = step.last + static_cast<int>(i);  // of the row before the draft
      if (i > 0) outputs = Row(index, position, output.back(), outputs);
      CompareDraft(index, output, position + 1, step.drafts[i], outputs);
      output.push_back(step.drafts[i]);
    }
  }

  // Compares one draft. A logit of the device is off by at most twice the error that rounding makes in the
  // reference (boundary.h).
  void CompareDraft(int index, const std::vector<int32_t>& output, int position, int32_t draft,
                    const Outputs& outputs) {
    const Vector exact = references_.exact.Logits(outputs.exact);
    const Vector rounded = references_.rounded.Logits(outputs.rounded);
    double rounding = 0;
    for (size_t i = 0; i < exact.size(); ++i) rounding = std::max(rounding, std::abs(exact[i] - rounded[i]));
    const Choices choices =
        reference::PossibleChoices(sampling_[index], {.prompt = prompts_[index], .output = output}, position,
                                   Spread(exact), 2 * rounding);
    const bool possible = std::binary_search(choices.possible.begin(), choices.possible.end(), draft);
    near_ties_ += possible && draft != choices.best ? 1 : 0;
    drafts_.Add(std::vector<int32_t>{possible ? choices.best : draft}, std::vector<int32_t>{choices.best});
  }

  // Spreads logits of the head's own tokens over [V]; other tokens get -infinity.
  Vector Spread(const Vector& own) const {
    const std::vector<int32_t>& tokens = device_.config().draft_head->token_ids;
    if (tokens.empty()) return own;
    Vector all(device_.config().vocab_size, -std::numeric_limits<double>::infinity());
    for (size_t i = 0; i < own.size(); ++i) all[tokens[i]] = own[i];
    return all;
  }

  int PromptLen(int index) const { return static_cast<int>(prompts_[index].size()); }

  ServingEngine& engine_;
  MtpDevice& device_;
  Eagle3References references_;
  const Prompts& prompts_;
  std::vector<SamplingParams> sampling_;
  std::vector<Served> requests_;
  CountBoundary drafts_;
  int64_t near_ties_ = 0;
};

}  // namespace

Boundary WithNearTies(Boundary drafts, int64_t near_ties) {
  drafts.left_out = near_ties;
  if (2 * near_ties > drafts.rows) drafts.difference = std::numeric_limits<double>::infinity();
  return drafts;
}

absl::StatusOr<Boundary> CheckSampledDrafts(ServingEngine& engine, MtpDevice& device,
                                            Eagle3References references, const Prompts& prompts,
                                            const ServingCheckOptions& options) {
  SampledDrafts check(engine, device, std::move(references), prompts, options);
  RETURN_IF_ERROR(check.Run());
  return check.Result();
}

}  // namespace foredraft
