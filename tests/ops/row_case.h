#pragma once

// OpCases of ops that map a matrix of rows to a matrix of rows.

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/ops/op_harness.h"

namespace foredraft {

// `x` has rows of x_width. `submit` returns a call of the op on the given rows; `check` compares an output
// row with the reference for its input row.
template <class Out, class In>
OpCase RowCase(std::string name, const std::vector<In>& x, int x_width, int out_width,
               std::function<std::function<void()>(OpRig& rig, Matrix<Out> out, Matrix<const In> x)> submit,
               std::function<void(const In* x, const Out* out)> check) {
  OpCase op_case;
  op_case.name = std::move(name);
  op_case.row_count = static_cast<int>(x.size()) / x_width;
  op_case.run = [=](OpRig& rig, const std::vector<int>& rows) {
    const int count = static_cast<int>(rows.size());
    const In* const inputs = rig.Put(RowsOf(x, x_width, rows));
    Out* out = rig.Poisoned<Out>(count * out_width);
    rig.Run(submit(rig, Dense(out, count, out_width), Dense(inputs, count, x_width)));
    return SplitRows(rig.Get(out, count * out_width), out_width);
  };
  op_case.check = [=](int row, const Bytes& output) {
    const std::vector<Out> values = FromBytes<Out>(output);
    ASSERT_EQ(values.size(), static_cast<size_t>(out_width));
    check(&x[row * x_width], values.data());
  };
  return op_case;
}

}  // namespace foredraft
