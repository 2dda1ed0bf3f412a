#pragma once

// Products of rows with weights of any kind, and the ops that make their input. Everything in the model that
// depends on a weight's kind is here and in input_rows.h: in which form a kind reads its input, which op
// writes that form, which products fuse. A recipe names the weights that read a row and passes InputRows on.
// A new kind of weight changes these two files and no recipe.

#include <limits>
#include <optional>

#include "engine/model/forward.h"
#include "engine/model/input_rows.h"
#include "kernels/ops.h"

namespace foredraft {

// What a layer's MLP leaves to the norm that reads the activations hidden next: that op adds it to them, too.
// Its memory is that of the activations, valid until the next attention or MLP writes there.
struct LeftToAdd {
  Matrix<const float> rows;                   // [R, D]; or absent
  std::optional<AddPartialsParams> partials;  // of experts on other ranks
};

// What a gated MLP computes between its products: silu_mul.
struct GatedActivation {
  float limit = std::numeric_limits<float>::infinity();
};

// Each calls the op of its name, Activate silu_mul. The op's fields for the input, or for
// the rows it makes, come from InputRows and stay unset in `p`, as does a GEMM's form.
void RmsNorm(const Forward& f, const InputRows& out, RmsNormParams p);
// Adds `left` to the activations' hidden, then norms them. hidden is p.x, and p.sum.
void RmsNormOfHidden(const Forward& f, const LeftToAdd& left, RmsNormParams p);
RmsNormParams RmsNormTo(const InputRows& out, RmsNormParams p);  // for an op that has rms_norm inside
void Activate(const Forward& f, GatedActivation activation, const InputRows& out, SiluMulParams p);
void Linear(const Forward& f, const InputRows& x, GemmParams p);
GemmParams LinearOf(const Forward& f, const InputRows& x, GemmParams p);  // for an op that has gemm inside
void GroupedLinear(const Forward& f, const InputRows& x, GroupedGemmParams p);

// Whether one op gives the activated rows of experts, quantised.
bool FusesGateUp(const PackedWeight& expert);

// out = the activation of what each grouped row's expert gives: in one op where rows are quantised and there
// is one (FusesGateUp), else by way of p.out.
void GroupedGateUp(const Forward& f, const InputRows& x, GatedActivation activation, const InputRows& out,
                   GroupedGemmParams p);

}  // namespace foredraft
