#pragma once

// DSpark: the model's own stages make all drafts of a step in one forward of a block per sequence
// (docs/dspark.md). What the stages read of committed tokens is written by the target's forward, so the
// drafter keeps nothing between steps.

#include "engine/spec/drafter_kind.h"

namespace foredraft {

extern const DrafterKind kDSpark;

}  // namespace foredraft
