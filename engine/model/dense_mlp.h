#ifndef FOREDRAFT_ENGINE_MODEL_DENSE_MLP_H_
#define FOREDRAFT_ENGINE_MODEL_DENSE_MLP_H_

// down(silu(gate x) * (up x)): dense layers and shared experts.

#include "engine/model/activations.h"
#include "engine/weights/model_weights.h"
#include "kernels/ops.h"

namespace foredraft {

// out and x: [R, D]. Uses gate_up and activated of `a`.
void DenseMlp(const Ops& ops, Stream& stream, const DenseMlpWeights& w, const Activations& a, GemmForm form,
              const InputRows& x, Matrix<float> out);

}  // namespace foredraft

#endif  // FOREDRAFT_ENGINE_MODEL_DENSE_MLP_H_
