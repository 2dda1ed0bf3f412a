#pragma once

#include "engine/model/deepseek_v4/deepseek_v4_weights.h"
#include "engine/model/deepseek_v4/v4_forward.h"

namespace foredraft {

// docs/deepseek-v4.md section 5: reads a.normed, writes a.projected. The routed experts are spread over the
// ranks (docs/architecture.md, expert-exchange); the shared expert is on all of them.
void V4Experts(const V4Forward& f, const V4MoeWeights& w);

}  // namespace foredraft
