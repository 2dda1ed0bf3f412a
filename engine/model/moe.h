#ifndef FOREDRAFT_ENGINE_MODEL_MOE_H_
#define FOREDRAFT_ENGINE_MODEL_MOE_H_

// Mixture of experts (docs/deepseek-v3.md 3.4): route, the chosen experts' MLPs on the ranks that have them,
// shared expert, ordered combine.

#include "engine/model/forward.h"
#include "engine/weights/model_weights.h"

namespace foredraft {

// hidden += experts(x) + shared(x). x: [R, D], as the router, the experts
// and the shared expert read it.
// Long batches go in rounds of MoeRowsAtOnce rows of every rank, as many rounds as the rank with most rows
// needs: all ranks take part in all of them.
void MixtureOfExperts(const Forward& f, const MoeWeights& w, const InputRows& x, Matrix<float> hidden);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_MOE_H_
