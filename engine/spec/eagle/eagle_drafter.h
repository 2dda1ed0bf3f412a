#pragma once

// MTP Eagle: module 1, recycled (docs/speculation.md section 3). The first forward of a step rewrites, from
// the target's outputs, the cache rows that recycled rows wrote in the step before; for each further draft
// the module reads its own output after shared_head.norm.

#include "engine/spec/drafter_kind.h"

namespace foredraft {

extern const DrafterKind kEagle;

}  // namespace foredraft
