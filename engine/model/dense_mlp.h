#pragma once

// down(silu(gate x) * (up x)): dense layers and shared experts.

#include "engine/model/forward.h"
#include "engine/weights/model_weights.h"

namespace foredraft {

// out and x: [R, D]. Uses the activations gate_up and activated.
void DenseMlp(const Forward& f, const DenseMlpWeights& w, const InputRows& x, Matrix<float> out);

}  // namespace foredraft
