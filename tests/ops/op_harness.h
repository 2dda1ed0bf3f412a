#ifndef FOREDRAFT_TESTS_OPS_OP_HARNESS_H_
#define FOREDRAFT_TESTS_OPS_OP_HARNESS_H_

// What is asked of every op that works on rows, in one place:
//   - a row equals an independent reference within a derived tolerance, on every instruction path;
//   - a row alone = the row in any company, bit for bit, with any number of threads;
//   - eager = replayed, bit for bit;
//   - what must be written is written: outputs are poisoned with NaN and -1 before.

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/op_rig.h"

namespace foredraft {

using Bytes = std::vector<unsigned char>;

struct OpCase {
  std::string name;
  int row_count;  // distinct rows the case can run
  // Runs the op over `rows` (indices below row_count, in this order, repeats allowed); returns each row's
  // output bytes.
  std::function<std::vector<Bytes>(OpRig& rig, const std::vector<int>& rows)> run;
  // Compares a row's output with the reference.
  std::function<void(int row, const Bytes& output)> check;
};

void ExpectOpHolds(const OpCase& op_case);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_OPS_OP_HARNESS_H_
