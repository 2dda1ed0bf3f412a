#include "tests/engine/covering_array.h"

#include <algorithm>

namespace foredraft {
namespace {

// A choice per factor; kUnset where a combination leaves the factor open, or a row is not filled yet.
using Row = std::vector<int>;
constexpr int kUnset = -1;

// Adds to `combinations` every way to set `strength` more factors of `row`, from factor `first` on.
void AddCombinations(const std::vector<int>& level_counts, int first, int strength, Row& row,
                     std::vector<Row>& combinations) {
  if (strength == 0) {
    combinations.push_back(row);
    return;
  }
  for (int f = first; f + strength <= static_cast<int>(level_counts.size()); ++f) {
    for (int choice = 0; choice < level_counts[f]; ++choice) {
      row[f] = choice;
      AddCombinations(level_counts, f + 1, strength - 1, row, combinations);
    }
    row[f] = kUnset;
  }
}

// The score of `row` for a combination: 0 if they conflict, 1 if the row can still be completed to contain
// it, 1000 if the row contains it.
int Gain(const Row& row, const Row& combination) {
  bool whole = true;
  for (size_t f = 0; f < row.size(); ++f) {
    if (combination[f] == kUnset || combination[f] == row[f]) continue;
    if (row[f] != kUnset) return 0;
    whole = false;
  }
  return whole ? 1000 : 1;
}

int Gain(const Row& row, const std::vector<Row>& open) {
  int gain = 0;
  for (const Row& combination : open) gain += Gain(row, combination);
  return gain;
}

}  // namespace

std::vector<Row> CoveringArray(const std::vector<int>& level_counts, int strength) {
  std::vector<Row> open;  // combinations that no row has yet
  Row unset(level_counts.size(), kUnset);
  AddCombinations(level_counts, 0, strength, unset, open);
  std::vector<Row> rows;
  while (!open.empty()) {
    Row row = open.front();  // so every row covers a new combination
    for (size_t f = 0; f < row.size(); ++f) {
      if (row[f] != kUnset) continue;
      int best_gain = -1;
      Row best;
      for (int choice = 0; choice < level_counts[f]; ++choice) {
        row[f] = choice;
        const int gain = Gain(row, open);
        if (gain > best_gain) {
          best_gain = gain;
          best = row;
        }
      }
      row = best;
    }
    std::erase_if(open, [&](const Row& combination) { return Gain(row, combination) == 1000; });
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace foredraft
