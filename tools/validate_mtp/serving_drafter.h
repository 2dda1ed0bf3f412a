#pragma once

// The drafter that serves (serving_engine.h): after every step the drafts in the slots have to be those that
// follow from the committed tokens alone (committed_drafts.h), the cache
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
#include "tools/validate_mtp/serving_engine.h"

namespace foredraft {

// The boundaries "serving drafts", "serving cache", "serving acceptance" and "serving tokens". `weights`
// belong to `device`, a CPU device, and have what the checkpoint's drafter runs: one MTP module, all
// stages, or a head.
absl::StatusOr<std::vector<Boundary>> CheckServingDrafter(Device& device, const ModelConfig& config,
                                                          const LoadedWeights& weights,
                                                          const Prompts& prompts,
                                                          const ServingCheckOptions& options);

}  // namespace foredraft
