#pragma once

// MTP Vanilla: Kmax modules in sequence, as trained (docs/speculation.md section 4). Every step, whatever K,
// every module runs its Kmax + 1 recent rows. Not K rows: after a fully accepted step, rows of the higher
// modules would never be written.

#include "engine/spec/drafter_kind.h"

namespace foredraft {

extern const DrafterKind kVanilla;

}  // namespace foredraft
