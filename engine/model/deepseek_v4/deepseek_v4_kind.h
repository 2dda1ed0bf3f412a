#pragma once

#include "engine/model/model_kinds.h"

namespace foredraft {

extern const ModelKind kDeepseekV4Kind;

}  // namespace foredraft
