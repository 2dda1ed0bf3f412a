#pragma once

#include "engine/model/model_kind.h"

namespace foredraft {

extern const ModelKind kDeepseekV4Kind;

}  // namespace foredraft
