#pragma once

// Checks DSpark on a checkpoint (docs/dspark.md): prefill, first blocks, and decode steps with verification
// and blocks, boundary by boundary, as mtp_chain.h does for MTP modules.
//
// The reference does not include the target: it begins at the outputs of the target's layers, which the
// device gives one by one. Taps, main_x and keys are compared as the target's forward wrote them. Each
// boundary (taps, main_x, keys, stages, logits, bias) is compared given the device's own input. Only
// dspark_full_block compares with a reference that computes everything after the layers itself. Then a
// server's engine runs the same prompts (serving_drafter.h).

#include "tools/validate_mtp/mtp_chain.h"

namespace foredraft {

// `weights` are those of `dir`, with all stages. INVALID_ARGUMENT if config.json does not give the number of
// stages, if a block has fewer rows than there are drafts, or if the model's sequences are too short for the
// chain. Also returns errors of reading files.
absl::StatusOr<MtpCheckResult> CheckDSparkChain(const std::string& dir, const ModelConfig& config,
                                                Device& device, const LoadedWeights& weights,
                                                const MtpCheckOptions& options);

}  // namespace foredraft
