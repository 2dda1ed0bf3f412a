#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/grouped_digits.h"

namespace foredraft {

inline std::string Megabytes(int64_t bytes) { return Grouped((bytes + 500'000) / 1'000'000); }

// "████████░░░░░░░░ 120 / 240 MB"
inline std::string ProgressBar(int64_t done_bytes, int64_t total_bytes) {
  constexpr int kCells = 16;
  const int64_t whole = std::max<int64_t>(total_bytes, 1);
  std::string bar;
  for (int cell = 0; cell < kCells; ++cell) bar += cell * whole < done_bytes * kCells ? "█" : "░";
  return absl::StrCat(bar, " ", Megabytes(done_bytes), " / ", Megabytes(total_bytes), " MB");
}

}  // namespace foredraft
