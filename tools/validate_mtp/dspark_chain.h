#pragma once

// DSpark on a checkpoint (docs/dspark.md): prefill, first blocks, and decode steps with verification and
// blocks, boundary by boundary, as mtp_chain.h does for MTP modules.
//
// The reference begins at the outputs of the target's layers, which the device gives one by one: the target
// is not in it. Taps, main_x and keys are those that the target's forward wrote; they, stages, logits and
// bias are compared each from the device's own input. dspark_full_block is the reference on its own from the
// layers on. Then a server's engine runs the same prompts (serving_drafter.h).

#include "tools/validate_mtp/mtp_chain.h"

namespace foredraft {

// `weights` are those of `dir`, with all stages. INVALID_ARGUMENT where config.json does not say how many
// stages there are, where a block has fewer rows than drafts are wanted, and where the model's sequences are
// too short for the chain; errors of reading the files.
absl::StatusOr<MtpCheckResult> CheckDSparkChain(const std::string& dir, const ModelConfig& config,
                                                Device& device, const LoadedWeights& weights,
                                                const MtpCheckOptions& options);

}  // namespace foredraft
