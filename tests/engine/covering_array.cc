#include "tests/engine/covering_array.h"

#include <array>
#include <set>

namespace foredraft {
namespace {

using Pair = std::array<int, 4>;  // factor, choice, later factor, choice

std::set<Pair> AllPairs(const std::vector<int>& levels) {
  std::set<Pair> pairs;
  const int factors = static_cast<int>(levels.size());
  for (int f = 0; f < factors; ++f) {
    for (int g = f + 1; g < factors; ++g) {
      for (int a = 0; a < levels[f]; ++a) {
        for (int b = 0; b < levels[g]; ++b) pairs.insert({f, a, g, b});
      }
    }
  }
  return pairs;
}

// Pairs that `choice` of factor `f` would newly cover with the factors before it (fixed) and, as far as still
// open, after.
int Gain(const std::set<Pair>& open, const std::vector<int>& row, int f, int choice, int factors) {
  int gain = 0;
  for (int g = 0; g < f; ++g) gain += 1000 * open.count({g, row[g], f, choice});
  for (const Pair& pair : open) gain += pair[0] == f && pair[1] == choice && pair[2] < factors;
  return gain;
}

}  // namespace

std::vector<std::vector<int>> PairwiseCoveringArray(const std::vector<int>& levels) {
  std::set<Pair> open = AllPairs(levels);
  const int factors = static_cast<int>(levels.size());
  std::vector<std::vector<int>> rows;
  while (!open.empty()) {
    const Pair seed = *open.begin();  // guarantees that every row covers something new
    std::vector<int> row(factors, 0);
    for (int f = 0; f < factors; ++f) {
      int best = 0;
      for (int choice = 1; choice < levels[f]; ++choice) {
        if (Gain(open, row, f, choice, factors) > Gain(open, row, f, best, factors)) best = choice;
      }
      row[f] = f == seed[0] ? seed[1] : f == seed[2] ? seed[3] : best;
    }
    for (int f = 0; f < factors; ++f) {
      for (int g = f + 1; g < factors; ++g) open.erase({f, row[f], g, row[g]});
    }
    rows.push_back(row);
  }
  return rows;
}

std::vector<std::vector<int>> FullProduct(const std::vector<int>& levels) {
  std::vector<std::vector<int>> rows = {{}};
  for (const int count : levels) {
    std::vector<std::vector<int>> longer;
    for (const std::vector<int>& row : rows) {
      for (int choice = 0; choice < count; ++choice) {
        longer.push_back(row);
        longer.back().push_back(choice);
      }
    }
    rows = std::move(longer);
  }
  return rows;
}

}  // namespace foredraft
