#pragma once

// The drafter that serves: a rank's engine, driven by the scheduler's plans as a server drives it, with
// captured steps, a padded batch, a prompt in three chunks and steps with K = 0. After every step the drafts
// in the slots have to be those that follow from the committed tokens alone (committed_drafts.h), the cache
// rows from which drafts are made those of committed tokens, bit for bit, and the tokens those that the
// target gives without drafts. A drafter's fault costs drafts, not tokens, so tokens alone do not show it;
// and a wrong row changes few drafts, so drafts alone may not.
//
// As in the chain (mtp_chain.h), some of the drafts to be verified are made right before each step from the
// second one on: 0, 1, .. K of them in turns. So steps of every length precede a comparison.

#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "tools/validate_mtp/boundary.h"

namespace foredraft {

struct ServingCheckOptions {
  int draft_len = 3;  // K, 1..kMaxDraftLen
  int steps = 4;      // decode steps of each prompt, at least
};

// One iteration in so many, the last of them, has K = 0.
inline constexpr int kServedPeriod = 4;

// How many tokens of a prompt's sequence and its drafts the check needs behind the prompt. A prompt has at
// most four decode steps beside `steps`, next to chunks of the other prompts and around a step without
// drafts.
inline int ServedTokens(const ServingCheckOptions& options) {
  return (options.steps + 5) * (options.draft_len + 1);
}

// The boundaries "serving drafts", "serving cache", "serving acceptance" and "serving tokens". `weights`
// belong to `device`, a CPU device, and have what the checkpoint's drafter runs: one MTP module, or all
// stages.
absl::StatusOr<std::vector<Boundary>> CheckServingDrafter(Device& device, const ModelConfig& config,
                                                          const LoadedWeights& weights,
                                                          const std::vector<std::vector<int32_t>>& prompts,
                                                          const ServingCheckOptions& options);

}  // namespace foredraft
