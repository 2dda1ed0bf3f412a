#pragma once

// MTP Vanilla: Kmax modules in sequence, as trained (docs/speculation.md section 4). In every step, whatever
// K is, every module runs its Kmax + 1 recent rows: with only K rows, a fully accepted step would leave rows
// of the higher modules unwritten.

#include "engine/spec/drafter_kind.h"

namespace foredraft {

extern const DrafterKind kVanilla;

}  // namespace foredraft
