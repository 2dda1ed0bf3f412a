#include "engine/model/dense_mlp.h"

namespace foredraft {

void DenseMlp(const Forward& f, const DenseMlpWeights& w, const InputRows& x, Matrix<float> out) {
  const Activations& a = f.activations;
  const Matrix<float> gate_up = a.gate_up.first_rows(x.rows()).columns(0, w.gate_up.n);
  const InputRows activated = a.activated.first_rows(x.rows()).first_columns(w.down.k).ReadBy({w.down});
  Linear(f, x, {.out = gate_up, .weight = w.gate_up});
  SiluMul(f, activated, {.gate_up = gate_up});
  Linear(f, activated, {.out = out, .weight = w.down});
}

}  // namespace foredraft
