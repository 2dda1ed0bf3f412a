#pragma once

// How many rows each rank contributes to a collective. All ranks have the same counts, from the plan.

#include <algorithm>
#include <array>
#include <cstdint>

namespace foredraft {

inline constexpr int kMaxRanks = 8;

struct RankRows {
  std::array<int32_t, kMaxRanks> rows{};  // rows[r]: of rank r; 0 past the last rank

  int32_t operator[](int rank) const { return rows[rank]; }
  int32_t& operator[](int rank) { return rows[rank]; }
  // The index of the first row of `rank` where the rows of all ranks lie one after another.
  int32_t offset(int rank) const {
    int32_t sum = 0;
    for (int r = 0; r < rank; ++r) sum += rows[r];
    return sum;
  }
  int32_t total() const { return offset(kMaxRanks); }
  int32_t largest() const { return *std::max_element(rows.begin(), rows.end()); }

  static RankRows Uniform(int ranks, int32_t rows) {
    RankRows uniform;
    std::fill_n(uniform.rows.begin(), ranks, rows);
    return uniform;
  }
};

}  // namespace foredraft
