#pragma once

#include "engine/spec/drafter_kind.h"

namespace foredraft {

// A head in a checkpoint of its own that reads layers of the target (docs/eagle3.md). Its bookkeeping is MTP
// Eagle's, with f in the place of the target's output.
extern const DrafterKind kEagle3;

}  // namespace foredraft
