#pragma once

// MTP Eagle: module 1, recycled (docs/speculation.md section 3). The first forward rewrites, with the
// target's true outputs, what recycled rows wrote in the step before; each further draft feeds the module its
// own output after shared_head.norm.

#include "engine/spec/drafter_kind.h"

namespace foredraft {

extern const DrafterKind kEagle;

}  // namespace foredraft
