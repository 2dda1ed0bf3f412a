#pragma once

#include "engine/model/model_kind.h"

namespace foredraft {

extern const ModelKind kDeepseekV3Kind;

}  // namespace foredraft
