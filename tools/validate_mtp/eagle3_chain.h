#pragma once

// `foredraft validate-mtp --head`: the chain of drafts of an Eagle3 head on a device, compared with the
// float64 reference (eagle3_reference.h). The reference does not include the target: its head reads the
// outputs of the device's layers. Prompts run in the prefill form; then each step takes one more of the
// target's own tokens and makes the drafts after it. eagle3_fused, eagle3_layer and eagle3_logits are each
// compared given the device's own input. eagle3_full_chain compares with a reference whose recycled rows take
// its own outputs, and eagle3_drafts with that reference's tokens, near ties left out.
//
// Then a server's engine runs the same prompts twice: with sampling and penalties, compared with float64 down
// to the token (eagle3_served.h), and greedily, compared with drafts made from the committed tokens alone
// (serving_drafter.h).

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
