#pragma once

// DSpark: the model's own stages make all drafts of a step in one forward, on one block per sequence
// (docs/dspark.md). The target's forward writes what the stages read of committed tokens, so the drafter
// keeps nothing between steps.

#include "engine/spec/drafter_kind.h"

namespace foredraft {

extern const DrafterKind kDSpark;

}  // namespace foredraft
