#pragma once

// `foredraft validate-mtp --head`: the chain of drafts of an Eagle3 head on a device, compared with the
// float64 reference (eagle3_reference.h). The target is not in the reference: the head reads what the
// device's layers gave. Prompts run in the prefill form, then each step takes one more of the target's own
// tokens and drafts behind it. eagle3_fused, eagle3_layer and eagle3_logits are compared each from the
// device's own input; eagle3_full_chain is the reference on its own, whose recycled rows take its own
// outputs; eagle3_drafts are its tokens, near ties left out.
//
// Then a server's engine runs the same prompts: sampled and with penalties, against float64 down to the token
// (eagle3_served.h), and greedily, against the committed tokens alone (serving_drafter.h).

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "tools/validate_mtp/mtp_chain.h"

namespace foredraft {

// `config` has the head, `weights` are those of `dir` and of config.draft_head->dir. Errors as CheckMtpChain.
absl::StatusOr<MtpCheckResult> CheckEagle3Chain(const std::string& dir, const ModelConfig& config,
                                                Device& device, const LoadedWeights& weights,
                                                const MtpCheckOptions& options);

}  // namespace foredraft
