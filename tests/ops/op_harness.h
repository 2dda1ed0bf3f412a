#pragma once

// The checks that every op on rows must pass:
//   - a row equals an independent reference within a derived tolerance, on every instruction path;
//   - a row has the same bits alone and beside any other rows, with any number of threads;
//   - eager and replayed runs give the same bits;
//   - every output is written: outputs are poisoned with NaN and -1 before;
//   - with FOREDRAFT_OP_REPEATS=N: so many times more, a random choice of rows each, while another stream of
//     the device copies large arrays. What a race gets wrong once in a hundred runs shows.

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/op_rig.h"

namespace foredraft {

using Bytes = std::vector<unsigned char>;

struct OpCase {
  std::string name;
  int row_count;             // distinct rows the case can run
  bool int8_inputs = false;  // of the devices that it runs on
  // Runs the op over `rows` (indices below row_count, in this order, repeats allowed); returns each row's
  // output bytes.
  std::function<std::vector<Bytes>(OpRig& rig, const std::vector<int>& rows)> run;
  // Compares a row's output with the reference.
  std::function<void(int row, const Bytes& output)> check;
};

void ExpectOpHolds(const OpCase& op_case);

// The chosen rows of x, which has rows of `width`.
template <class T>
std::vector<T> RowsOf(const std::vector<T>& x, size_t width, const std::vector<int>& rows) {
  std::vector<T> chosen;
  for (const int row : rows) {
    chosen.insert(chosen.end(), x.begin() + row * width, x.begin() + (row + 1) * width);
  }
  return chosen;
}

// The bytes of each row.
template <class T>
std::vector<Bytes> SplitRows(const std::vector<T>& values, size_t width) {
  std::vector<Bytes> rows;
  for (size_t first = 0; first < values.size(); first += width) {
    rows.push_back(BytesOf(&values[first], width));
  }
  return rows;
}

}  // namespace foredraft
