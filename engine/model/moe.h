#pragma once

// Mixture of experts (docs/deepseek-v3.md 3.4): route, the chosen experts' MLPs on the ranks that have them,
// shared expert, ordered combine.

#include "engine/model/deepseek_v3/model_weights.h"
#include "engine/model/forward.h"

namespace foredraft {

// hidden += experts(x) + shared(x). x: [R, D], in the forms that router, experts and shared expert read.
// Runs in rounds of at most MoeRowsAtOnce rows per rank. All ranks take part in as many rounds as the rank
// with the most rows needs.
void MixtureOfExperts(const Forward& f, const MoeWeights& w, const InputRows& x, Matrix<float> hidden);

}  // namespace foredraft
