#pragma once

// Checks the whole MTP chain on a checkpoint (docs/mtp-contract.md): prefill, first drafts, and decode steps
// with verification, drafting and state, boundary by boundary.
//
// The device runs the recipes and the slot ops that serve. Token rows, acceptance and state must equal those
// of the contract's functions (tools/validate_mtp/mtp_contract.h). Projection, layer, forward and logits are
// compared with mtp_reference.h, each given the device's own input. mtp_full_chain compares with a reference
// whose recycled forwards take its own outputs. The reference does not include the target: the module takes
// the outputs of the device's target, and the tokens must be those that the target gives without drafts.
//
// With random weights few drafts are right, so each step replaces some of the drafts to be verified by the
// tokens that the target will choose: 0, 1, .. K of them in turn.
//
// Then a server's engine runs the same prompts (serving_drafter.h): the chain has its own loop, so it cannot
// find faults of the drafter that serves.

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/loaded_weights.h"
#include "engine/model/model_config.h"
#include "kernels/device.h"
#include "tools/validate_mtp/boundary.h"

namespace foredraft {

struct MtpCheckOptions {
  int draft_len = 3;  // K, 1..kMaxDraftLen
  int steps = 4;      // at least 1
  uint64_t seed = 1;  // of the prompts
};

struct MtpCheckResult {
  std::vector<Boundary> boundaries;  // in the order of the chain
  std::vector<int> prompt_lens;      // of the requests
  int64_t verified = 0;              // drafts
  int64_t accepted = 0;              // drafts

  bool ok() const;
};

inline constexpr int kChainRequests = 3;

// The prompts of a chain: one of a few tokens, one of a single token and, where the model's sequences are
// long enough, one longer than an attention window, or than the positions an indexer keeps. INVALID_ARGUMENT
// if the model's sequences are too short for the chain.
absl::StatusOr<std::vector<std::vector<int32_t>>> ChainPrompts(const ModelConfig& config,
                                                               const MtpCheckOptions& options);

// `weights` are those of `dir`, with one MTP module. INVALID_ARGUMENT if the model's sequences are too short
// for the chain. Also returns errors of reading files.
absl::StatusOr<MtpCheckResult> CheckMtpChain(const std::string& dir, const ModelConfig& config,
                                             Device& device, const LoadedWeights& weights,
                                             const MtpCheckOptions& options);

}  // namespace foredraft
