#include "engine/model/linear.h"

namespace foredraft {

RmsNormParams RmsNormTo(const InputRows& out, RmsNormParams p) {
  p.out_bf16 = out.as_bf16;
  p.out_f8 = out.as_f8;
  return p;
}

void RmsNorm(const Forward& f, const InputRows& out, RmsNormParams p) {
  f.ops.rms_norm(f.stream, RmsNormTo(out, p));
}

void RmsNormOfHidden(const Forward& f, const LeftToAdd& left, RmsNormParams p) {
  const Matrix<float> hidden = f.activations.hidden.first_rows(f.rows());
  p.x = hidden;
  if (left.partials) return f.ops.add_partials_norm(f.stream, {.partials = *left.partials, .norm = p});
  if (left.rows) {
    p.residual = left.rows;
    p.sum = hidden;
  }
  f.ops.rms_norm(f.stream, p);
}

void Activate(const Forward& f, GatedActivation activation, const InputRows& out, SiluMulParams p) {
  p.out = out.as_bf16;
  p.out_f8 = out.as_f8;
  p.limit = activation.limit;
  f.ops.silu_mul(f.stream, p);
}

GemmParams LinearOf(const Forward& f, const InputRows& x, GemmParams p) {
  p.x = x.as_bf16;
  p.x_f8 = x.as_f8;
  p.form = f.batch.gemm_form();
  return p;
}

void Linear(const Forward& f, const InputRows& x, GemmParams p) { f.ops.gemm(f.stream, LinearOf(f, x, p)); }

void GroupedLinear(const Forward& f, const InputRows& x, GroupedGemmParams p) {
  p.x = x.as_bf16;
  p.x_f8 = x.as_f8;
  f.ops.grouped_gemm(f.stream, p);
}

bool FusesGateUp(const PackedWeight& expert) {
  return ReadsF8(expert) && expert.k % kQuantGroup == 0 && expert.n / 2 % kQuantGroup == 0;
}

void GroupedGateUp(const Forward& f, const InputRows& x, GatedActivation activation, const InputRows& out,
                   GroupedGemmParams p) {
  if (out.as_f8 && FusesGateUp(p.experts.first)) {
    p.out = {};
    p.silu_f8 = out.as_f8;
    p.silu_limit = activation.limit;
    GroupedLinear(f, x, p);
    return;
  }
  GroupedLinear(f, x, p);
  Activate(f, activation, out, {.gate_up = p.out, .row_count = p.expert_offsets + p.experts.count});
}

}  // namespace foredraft
