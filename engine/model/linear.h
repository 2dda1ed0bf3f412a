#pragma once

// Products of rows with weights of any kind, and the ops that make their input. Everything in the model that
// depends on a weight's kind is here: in which form a kind reads its input, which op writes that form, which
// products fuse. A recipe names the weights that read a row and passes InputRows on. A new kind of weight
// changes this file and no recipe.

#include <initializer_list>
#include <limits>

#include "kernels/ops.h"
#include "kernels/tensor.h"

namespace foredraft {

struct Forward;

// The input of products, in one form or several. A product whose weight reads a form that is absent makes
// that form from the BF16 rows, with the same bits.
struct InputRows {
  Matrix<bf16> as_bf16;  // data may be null where another form is there; the shape is always set
  QuantizedRows as_f8;   // absent where the device does not quantise rows

  int32_t rows() const { return as_bf16.rows; }
  InputRows first_rows(int32_t count) const { return {as_bf16.first_rows(count), as_f8.first_rows(count)}; }
  // first: a multiple of 4.
  InputRows row_range(int32_t first, int32_t count) const;
  InputRows first_columns(int32_t count) const {
    return {as_bf16.columns(0, count), as_f8.first_columns(count)};
  }
  // The forms that `readers` read. The op that fills the result writes those and no other.
  InputRows ReadBy(std::initializer_list<PackedWeight> readers) const;
};

// What a gated MLP computes between its products: silu_mul.
struct GatedActivation {
  float limit = std::numeric_limits<float>::infinity();
};

// Each calls the op of its name, Activate silu_mul. The op's fields for the input, or for
// the rows it makes, come from InputRows and stay unset in `p`, as does a GEMM's form.
void RmsNorm(const Forward& f, const InputRows& out, RmsNormParams p);
RmsNormParams RmsNormTo(const InputRows& out, RmsNormParams p);  // for an op that has rms_norm inside
void Activate(const Forward& f, GatedActivation activation, const InputRows& out, SiluMulParams p);
void Linear(const Forward& f, const InputRows& x, GemmParams p);
void GroupedLinear(const Forward& f, const InputRows& x, GroupedGemmParams p);

// out = the activation of what each grouped row's expert gives: in one op where the backend has that for the
// weights' kind, else by way of p.out.
void GroupedGateUp(const Forward& f, const InputRows& x, GatedActivation activation, const InputRows& out,
                   GroupedGemmParams p);

}  // namespace foredraft
