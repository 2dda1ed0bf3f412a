#pragma once

// Checks the drafter that serves (serving_engine.h). After every step, drafts in the slots must be those made
// from the committed tokens alone (committed_drafts.h), the cache rows that drafts read must be those of
// committed tokens, bit for bit, and tokens must be those that the target gives without drafts. A drafter's
// fault changes drafts but no tokens, so comparing tokens alone does not find it; a wrong cache row changes
// few drafts, so comparing drafts alone may not find it either.
//
// As in the chain (mtp_chain.h), before each step from the second on, some of the drafts to be verified are
// replaced by right tokens: 0, 1, .. K of them in turn. So steps that accept any number of drafts precede a
// comparison.

#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "tools/validate_mtp/boundary.h"
#include "tools/validate_mtp/serving_engine.h"

namespace foredraft {

// The boundaries "serving drafts", "serving cache", "serving acceptance" and "serving tokens". `weights`
// belong to `device`, a CPU device, and include those of the checkpoint's drafter: one MTP module, all
// stages, or a head.
absl::StatusOr<std::vector<Boundary>> CheckServingDrafter(Device& device, const ModelConfig& config,
                                                          const LoadedWeights& weights,
                                                          const Prompts& prompts,
                                                          const ServingCheckOptions& options);

}  // namespace foredraft
