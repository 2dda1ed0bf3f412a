#include "tests/ops/op_harness.h"

#include <cstdlib>
#include <numeric>
#include <utility>

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
  OpRig rig({.threads = 1, .isa = isa, .int8_inputs = op_case.int8_inputs}, RunMode::kEager);
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

std::vector<int> ChooseRows(Noise& noise, const OpCase& op_case, int size) {
  std::vector<int> rows(size);
  for (int& row : rows) row = noise.Int(0, op_case.row_count - 1);
  return rows;
}

// Copies of large arrays on a stream of their own.
class Traffic {
 public:
  explicit Traffic(OpRig& rig)
      : rig_(rig), stream_(rig.device().CreateStream()), rows_(IsGpu(rig.device()) ? 2048 : 16) {
    from_ = rig.Poisoned<float>(rows_ * kWidth);
    to_ = rig.Poisoned<float>(rows_ * kWidth);
  }
  ~Traffic() { stream_->Synchronize(); }
  void Submit() {
    rig_.ops().copy_rows(
        *stream_,
        {.out = Dense(to_, rows_, kWidth), .x = Dense<const float>(from_, rows_, kWidth), .rows = rows_});
  }

 private:
  static constexpr int kWidth = 4096;
  // Else the CPU, or a GPU that it emulates.
  static bool IsGpu(const Device& device) { return device.name().find("NVIDIA") != std::string::npos; }

  OpRig& rig_;
  const std::unique_ptr<Stream> stream_;
  const int rows_;  // 32 MB on a GPU
  float* from_ = nullptr;
  float* to_ = nullptr;
};

void RepeatBesideTraffic(const OpCase& op_case, const std::string& isa, const std::vector<Bytes>& alone,
                         int repeats) {
  constexpr int kRepeatsOfRig = 20;  // which frees its memory at the end
  constexpr int kMaxRows = 40;
  Noise noise(2);
  const auto recorded = std::exchange(on_read_back, nullptr);  // what is repeated is not recorded
  for (int done = 0; done < repeats; done += kRepeatsOfRig) {
    const RunMode mode = done / kRepeatsOfRig % 2 == 0 ? RunMode::kEager : RunMode::kReplayed;
    OpRig rig({.threads = ThreadCounts().back(), .isa = isa, .int8_inputs = op_case.int8_inputs}, mode);
    Traffic traffic(rig);
    for (int i = done; i < std::min(repeats, done + kRepeatsOfRig); ++i) {
      SCOPED_TRACE("repeat " + std::to_string(i));
      const std::vector<int> rows = ChooseRows(noise, op_case, noise.Int(1, kMaxRows));
      traffic.Submit();
      ExpectSameRows(op_case, rows, op_case.run(rig, rows), alone);
      if (testing::Test::HasFailure()) break;
    }
  }
  on_read_back = recorded;
}

int Repeats() {
  const char* const repeats = std::getenv("FOREDRAFT_OP_REPEATS");
  return repeats != nullptr ? std::atoi(repeats) : 0;
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
        OpRig rig({.threads = threads, .isa = isa, .int8_inputs = op_case.int8_inputs}, mode);
        for (const int size : BatchSizes()) {
          const std::vector<int> rows = ChooseRows(noise, op_case, size);
          ExpectSameRows(op_case, rows, op_case.run(rig, rows), alone);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
    RepeatBesideTraffic(op_case, isa, alone, Repeats());
  }
}

}  // namespace foredraft
