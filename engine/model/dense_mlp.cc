#include "engine/model/dense_mlp.h"

namespace foredraft {

void DenseMlp(const Ops& ops, Stream& stream, const DenseMlpWeights& w, const Activations& a, GemmForm form,
              Matrix<const bf16> x, Matrix<float> out) {
  const Matrix<float> gate_up = a.gate_up.first_rows(x.rows).columns(0, w.gate_up.n);
  const Matrix<bf16> activated = a.activated.first_rows(x.rows).columns(0, w.down.k);
  ops.gemm(stream, {.out = gate_up, .x = x, .weight = w.gate_up, .form = form});
  ops.silu_mul(stream, {.out = activated, .gate_up = gate_up});
  ops.gemm(stream, {.out = out, .x = activated, .weight = w.down, .form = form});
}

}  // namespace foredraft
