#pragma once

// The whole MTP chain on a checkpoint (docs/mtp-contract.md): prefill, first drafts, and decode steps with
// verification, drafting and state, boundary by boundary.
//
// The device runs the recipes and the slot ops that serve. Token rows, acceptance and state are compared with
// the contract's functions (tools/validate_mtp/mtp_contract.h) and have to be equal; projection, layer,
// forward and logits with mtp_reference.h, each from the device's own input. mtp_full_chain is the reference
// on its own: its recycled forwards take its own outputs. The target is not in the reference: the module
// takes the device's target outputs, and the tokens have to be those that the target gives without drafts.
//
// Few random drafts are right, so in every step some of the drafts to be verified are replaced by the tokens
// that the target will choose: 0, 1, .. K of them in turns.
//
// Then a server's engine runs the same prompts (serving_drafter.h): the chain has a loop of its own, so it
// does not show a fault of the drafter that serves.

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

// The prompts of a chain: a few tokens, one, and more than a window of attention, or than an indexer keeps,
// where the model's sequences are long enough. INVALID_ARGUMENT where they are too short for the chain.
absl::StatusOr<std::vector<std::vector<int32_t>>> ChainPrompts(const ModelConfig& config,
                                                               const MtpCheckOptions& options);

// `weights` are those of `dir`, with one MTP module. INVALID_ARGUMENT where the model's sequences are too
// short for the chain; errors of reading the files.
absl::StatusOr<MtpCheckResult> CheckMtpChain(const std::string& dir, const ModelConfig& config,
                                             Device& device, const LoadedWeights& weights,
                                             const MtpCheckOptions& options);

}  // namespace foredraft
