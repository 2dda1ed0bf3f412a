#pragma once

// `foredraft tune`: for each GEMM, finds the fastest algorithm that is row-independent (docs/invariants.md
// section 3). Runs once, on the device that will serve.

#include <compare>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace foredraft {

// The key of an algorithm. It has no row count: one algorithm must serve every row count.
struct GemmShape {
  int32_t n = 0;
  int32_t k = 0;
  DType weight = DType::kBF16;  // kBF16 or kF8E4M3
  DType out = DType::kF32;      // kF32 or kBF16
  GemmForm form = GemmForm::kDecode;

  auto operator<=>(const GemmShape&) const = default;
};

struct GemmToTune {
  std::string name;  // of the weight, for display
  GemmShape shape;
  std::vector<int32_t> rows;  // ascending: the row counts it will run with, or a sample of them
};

// Returns the text of the tuning file. `report` is called with a line after each GEMM. UNAVAILABLE without
// the device, FAILED_PRECONDITION for a backend that has nothing to tune.
absl::StatusOr<std::string> TuneGemms(const std::string& backend, std::span<const GemmToTune> gemms,
                                      const std::function<void(const std::string&)>& report);

}  // namespace foredraft
