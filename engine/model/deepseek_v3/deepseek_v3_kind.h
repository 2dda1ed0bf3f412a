#pragma once

#include "engine/model/model_kinds.h"

namespace foredraft {

extern const ModelKind kDeepseekV3Kind;

}  // namespace foredraft
