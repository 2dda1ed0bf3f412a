#include "engine/model/dense_mlp.h"

namespace foredraft {

void DenseMlp(const Ops& ops, Stream& stream, const DenseMlpWeights& w, const Activations& a, GemmForm form,
              const InputRows& x, Matrix<float> out) {
  const Matrix<float> gate_up = a.gate_up.first_rows(x.rows()).columns(0, w.gate_up.n);
  const InputRows activated = a.activated.first_rows(x.rows()).first_columns(w.down.k).For(w.down);
  ops.gemm(stream, {.out = gate_up, .x = x.as_bf16, .x_f8 = x.as_f8, .weight = w.gate_up, .form = form});
  ops.silu_mul(stream, {.out = activated.as_bf16, .out_f8 = activated.as_f8, .gate_up = gate_up});
  ops.gemm(stream,
           {.out = out, .x = activated.as_bf16, .x_f8 = activated.as_f8, .weight = w.down, .form = form});
}

}  // namespace foredraft
