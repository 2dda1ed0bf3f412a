#ifndef FOREDRAFT_ENGINE_MODEL_MOE_H_
#define FOREDRAFT_ENGINE_MODEL_MOE_H_

// Mixture of experts (docs/deepseek-v3.md 3.4): route, the chosen experts' MLPs wherever they are, shared
// expert, ordered combine.

#include "config/model_config.h"
#include "engine/comm/communicator.h"
#include "engine/model/activations.h"
#include "engine/model/batch.h"
#include "engine/weights/model_weights.h"
#include "kernels/ops.h"

namespace foredraft {

// hidden += experts(x) + shared(x). x: [R, D], the BF16 form at least. Long batches go in rounds of
// MoeRowsAtOnce rows of every rank, as many as the rank with most rows needs: all ranks take part in all of
// them.
void MixtureOfExperts(const Ops& ops, Stream& stream, Communicator& comm, const ModelConfig& config,
                      const MoeWeights& w, const Activations& a, const Batch& batch, const InputRows& x,
                      Matrix<float> hidden);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_MOE_H_
