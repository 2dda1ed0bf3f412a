#pragma once

#include "engine/spec/drafter_kind.h"

namespace foredraft {

// A head in a checkpoint of its own that reads layers of the target (docs/eagle3.md). It works as MTP Eagle
// does, with the fused row f in place of the target's output.
extern const DrafterKind kEagle3;

}  // namespace foredraft
