#pragma once

// The tokens that a head can choose: all of the target's tokens, or a subset. d2t[i] is the distance from the
// head's id i to the target's id of the same token.

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/draft_head.h"

namespace foredraft {

// Sets head.own_lm_head and head.token_ids from the checkpoint. INVALID_ARGUMENT names the tensor: a d2t that
// leaves the vocabulary or names a token twice, a smaller vocabulary without d2t or without lm_head.
absl::Status ReadDraftTokens(const Checkpoint& checkpoint, DraftHead& head);

// The tokens of a head with random weights: `count` of `vocab_size`, ascending; empty where the head has all.
std::vector<int32_t> RandomDraftTokens(int count, int vocab_size);

}  // namespace foredraft
