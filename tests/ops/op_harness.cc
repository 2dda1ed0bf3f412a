#include "tests/ops/op_harness.h"

#include <numeric>

namespace foredraft {
namespace {

// Host threads matter only to the CPU backend. Other backends run fewer rows, as they may be emulated
// (tests/cuda_on_host).
std::vector<int> ThreadCounts() {
  if (TestBackend() != "cpu") return {1};
  return {1, 3};
}
std::vector<int> BatchSizes() {
  if (TestBackend() != "cpu") return {1, 2, 5, 33};
  return {1, 2, 3, 4, 5, 6, 7, 8, 9, 33};
}

std::vector<Bytes> RunAlone(const OpCase& op_case, const std::string& isa) {
  std::vector<Bytes> outputs;
  OpRig rig({.threads = 1, .isa = isa}, RunMode::kEager);
  for (int row = 0; row < op_case.row_count; ++row) {
    outputs.push_back(op_case.run(rig, {row})[0]);
  }
  return outputs;
}

void ExpectSameRows(const OpCase& op_case, const std::vector<int>& rows, const std::vector<Bytes>& outputs,
                    const std::vector<Bytes>& alone) {
  ASSERT_EQ(outputs.size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(outputs[i], alone[rows[i]]) << op_case.name << ": row " << rows[i] << " at index " << i
                                          << " of " << rows.size() << " differs from the row alone";
  }
}

}  // namespace

std::vector<std::string> SupportedIsas() {
  if (TestBackend() != "cpu") return {""};
  std::vector<std::string> isas;
  for (const char* isa : {"amx", "avx512", "avx2", "portable"}) {
    if (CreateDevice("cpu", {.isa = isa}).ok()) isas.push_back(isa);
  }
  return isas;
}

void ExpectOpHolds(const OpCase& op_case) {
  Noise noise(1);
  for (const std::string& isa : SupportedIsas()) {
    SCOPED_TRACE(op_case.name + ", isa " + isa);
    const std::vector<Bytes> alone = RunAlone(op_case, isa);
    for (int row = 0; row < op_case.row_count; ++row) op_case.check(row, alone[row]);
    for (const int threads : ThreadCounts()) {
      for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
        SCOPED_TRACE(std::to_string(threads) + " threads, " +
                     (mode == RunMode::kEager ? "eager" : "replayed"));
        OpRig rig({.threads = threads, .isa = isa}, mode);
        for (const int size : BatchSizes()) {
          std::vector<int> rows(size);
          for (int& row : rows) row = noise.Int(0, op_case.row_count - 1);
          ExpectSameRows(op_case, rows, op_case.run(rig, rows), alone);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

}  // namespace foredraft
