#include "tools/validate_mtp/committed_drafts.h"

#include <algorithm>

#include "base/check.h"

namespace foredraft {
namespace {

// Rows of tokens [first, end); token i is at position i.
DeviceRows RowsOf(const std::vector<int32_t>& tokens, int first, int end) {
  DeviceRows rows;
  for (int position = first; position < end; ++position) {
    rows.ids.push_back(tokens[position]);
    rows.slots.push_back(0);
    rows.positions.push_back(position);
  }
  return rows;
}

}  // namespace

// Runs `part` over the tokens from `first` on; those before prompt_len run in the prefill form. previous: the
// outputs of the level below, from position first - 1 on; empty for the target.
std::vector<float> CommittedDrafts::Forward(MtpDevice::Part part, const std::vector<int32_t>& tokens,
                                            int first, int prompt_len, const std::vector<float>& previous) {
  const int end = static_cast<int>(tokens.size()), border = std::clamp(prompt_len, first, end);
  std::vector<float> outputs;
  const auto run = [&](int begin, int stop, bool prefill) {
    if (begin == stop) return;
    DeviceRows rows = RowsOf(tokens, begin, stop);
    rows.prefill = prefill;
    if (!previous.empty()) {
      const auto width = int64_t{device_.width()};
      rows.previous.assign(previous.begin() + (begin - first) * width,
                           previous.begin() + (stop - first) * width);
    }
    const std::vector<float> given = device_.Run(part, rows);
    outputs.insert(outputs.end(), given.begin(), given.end());
  };
  run(first, border, /*prefill=*/true);
  run(border, end, /*prefill=*/false);
  return outputs;
}

int32_t CommittedDrafts::Best(int level, const std::vector<float>& output) {
  return BestTokens(device_.Logits(level, output), device_.config().vocab_size)[0];
}

std::vector<int32_t> CommittedDrafts::Tokens(const std::vector<int32_t>& prompt, int count) {
  device_.PoisonCache();
  std::vector<int32_t> all = prompt;
  const int prompt_len = static_cast<int>(prompt.size());
  std::vector<float> outputs = Forward(MtpDevice::Part::kTarget, all, 0, prompt_len, {});
  while (true) {
    all.push_back(Best(0, device_.LastRow(outputs)));
    const int end = static_cast<int>(all.size());
    if (end == prompt_len + count) return {all.begin() + prompt_len, all.end()};
    outputs = device_.Run(MtpDevice::Part::kTarget, RowsOf(all, end - 1, end));
  }
}

std::vector<int32_t> CommittedDrafts::Drafts(const std::vector<int32_t>& tokens, int prompt_len, int count) {
  CHECK_GE(tokens.size(), size_t(prompt_len) + 1);
  device_.PoisonCache();
  // t_P is not in the target's cache.
  const std::vector<float> target = Forward(device_.below_module(), {tokens.begin(), tokens.end() - 1},
                                            /*first=*/0, prompt_len, {});
  return device_.config().dspark.has_value() ? OfBlock(tokens, count)
                                             : OfModule(tokens, prompt_len, count, target);
}

// Runs one block from t_P; the cache has what it reads of the tokens before.
std::vector<int32_t> CommittedDrafts::OfBlock(const std::vector<int32_t>& tokens, int count) {
  if (count == 0) return {};
  const int vocab_size = device_.config().vocab_size;
  DeviceRows rows =
      BlockRowsOf(*device_.config().dspark, /*slot=*/0, tokens.back(), static_cast<int>(tokens.size()) - 1);
  const int stages = device_.config().dspark->stage_count;
  for (int stage = 0; stage < stages; ++stage) rows.previous = device_.Stage(stage, rows);
  const std::vector<float> logits = device_.Logits(stages, rows.previous);
  std::vector<int32_t> drafts;
  for (int row = 0; row < count; ++row) {
    std::vector<float> sum = device_.MarkovBias({row == 0 ? tokens.back() : drafts.back()});
    for (int i = 0; i < vocab_size; ++i) sum[i] += logits[int64_t{row} * vocab_size + i];
    drafts.push_back(BestTokens(sum, vocab_size)[0]);
  }
  return drafts;
}

std::vector<int32_t> CommittedDrafts::OfModule(const std::vector<int32_t>& tokens, int prompt_len, int count,
                                               const std::vector<float>& target) {
  const int last = static_cast<int>(tokens.size()) - 1;  // P
  std::vector<float> output =
      device_.LastRow(Forward(MtpDevice::Part::kForward, tokens, /*first=*/1, prompt_len, target));
  const int32_t last_row = last - std::max(1, prompt_len);  // among the forward's decode-form rows
  std::vector<int32_t> drafts;
  while (static_cast<int>(drafts.size()) < count) {
    if (!drafts.empty()) {
      output = device_.Run(MtpDevice::Part::kForward, {.ids = {drafts.back()},
                                                       .slots = {0},
                                                       .positions = {last + static_cast<int>(drafts.size())},
                                                       .previous = std::move(output),
                                                       .list_rows = {last_row}});
    }
    drafts.push_back(Best(1, output));
  }
  return drafts;
}

}  // namespace foredraft
