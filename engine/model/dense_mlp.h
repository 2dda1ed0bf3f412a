#pragma once

// down(silu(gate x) * (up x)): dense layers and shared experts.

#include "engine/model/deepseek_v3/model_weights.h"
#include "engine/model/forward.h"

namespace foredraft {

// out and x: [R, D]. Uses the activations gate_up and activated.
void DenseMlp(const Forward& f, const DenseMlpWeights& w, const InputRows& x, Matrix<float> out);

}  // namespace foredraft
