#pragma once

// Products of rows with weights of any format, and the ops that make their input. Everything in the model
// that depends on a weight's format is here and in input_rows.h: in which form a product reads its input,
// which op writes that form, which products fuse. A recipe names the weights that read a row and passes
// InputRows on. A new weight format changes these two files and no recipe.

#include <limits>
#include <optional>

#include "engine/model/forward.h"
#include "engine/model/input_rows.h"
#include "kernels/ops.h"

namespace foredraft {

// A sum that a layer's MLP leaves to the next norm of Activations::hidden: that norm's op also adds it to
// hidden. Its memory belongs to the activations and is valid until the next attention or MLP writes there.
struct LeftToAdd {
  Matrix<const float> rows;                   // [R, D]; or absent
  std::optional<AddPartialsParams> partials;  // of experts on other ranks
};

// The activation of a gated MLP: silu_mul, with its limit.
struct GatedActivation {
  float limit = std::numeric_limits<float>::infinity();
};

// Each of these calls the op of its name (Activate calls silu_mul). Leave unset in `p`: the op's fields for
// the rows that it reads or makes, which come from InputRows, and a GEMM's form.
void RmsNorm(const Forward& f, const InputRows& out, RmsNormParams p);
// Adds `left` to Activations::hidden, then norms hidden. Sets p.x, and p.sum where needed, to hidden.
void RmsNormOfHidden(const Forward& f, const LeftToAdd& left, RmsNormParams p);
RmsNormParams RmsNormTo(const InputRows& out, RmsNormParams p);  // for an op that has rms_norm inside
void Activate(const Forward& f, GatedActivation activation, const InputRows& out, SiluMulParams p);
void Linear(const Forward& f, const InputRows& x, GemmParams p);
GemmParams LinearOf(const Forward& f, const InputRows& x, GemmParams p);  // for an op that has gemm inside
void GroupedLinear(const Forward& f, const InputRows& x, GroupedGemmParams p);

// Whether one op computes gate and up of experts and returns their activated rows, quantised.
bool FusesGateUp(const PackedWeight& expert);

// out = the activated gate and up of each grouped row's expert: in one op if FusesGateUp and rows are
// quantised, else by way of p.out.
void GroupedGateUp(const Forward& f, const InputRows& x, GatedActivation activation, const InputRows& out,
                   GroupedGemmParams p);

}  // namespace foredraft
