#pragma once

// Runs ops at DeepSeek-R1's shapes: every row has to have the same bits alone and in batches of up to 256
// rows (7 where the GPU is emulated, by tests/cuda_on_host), eager and replayed.

#include <functional>
#include <string>
#include <vector>

#include "tests/ops/op_harness.h"

namespace foredraft {

inline constexpr int kRows = 6;  // distinct rows
#ifdef FOREDRAFT_EMULATED_GPU
inline constexpr int kBatchSizes[] = {2, 7};
#else
inline constexpr int kBatchSizes[] = {2, 7, 8, 16, 33, 64, 65, 128, 129, 256};
#endif
inline constexpr int kR1Vocab = 129280;
inline constexpr int kR1Hidden = 7168;

// Large weights are packed once, so the rigs live as long as the binary.
inline OpRig& Rig(RunMode mode) {
  static auto* const eager = new OpRig({}, RunMode::kEager);
  static auto* const replayed = new OpRig({}, RunMode::kReplayed);
  return mode == RunMode::kEager ? *eager : *replayed;
}

// Runs the rows with these indices, in this order, repeats allowed; returns an output per row.
using RunRows = std::function<std::vector<Bytes>(RunMode mode, const std::vector<int>& rows)>;

// Returns the rows' outputs alone, after checking that they have the same bits in any batch.
inline std::vector<Bytes> ExpectRowsAlone(const std::string& name, const RunRows& run) {
  std::vector<Bytes> alone;
  for (int row = 0; row < kRows; ++row) alone.push_back(run(RunMode::kEager, {row})[0]);
  for (const RunMode mode : {RunMode::kEager, RunMode::kReplayed}) {
    for (const int size : kBatchSizes) {
      std::vector<int> rows(size);
      for (int i = 0; i < size; ++i) rows[i] = (i * 5 + size) % kRows;
      const std::vector<Bytes> outputs = run(mode, rows);
      for (int i = 0; i < size; ++i) {
        EXPECT_EQ(outputs[i], alone[rows[i]])
            << name << ": row " << rows[i] << " at index " << i << " of " << size
            << (mode == RunMode::kEager ? ", eager" : ", replayed") << " differs from the row alone";
        if (testing::Test::HasFailure()) return alone;
      }
    }
  }
  return alone;
}

}  // namespace foredraft
