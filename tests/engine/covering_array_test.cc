#include "tests/engine/covering_array.h"

#include <gtest/gtest.h>

#include <set>

namespace foredraft {
namespace {

const std::vector<int> kLevels = {4, 2, 3, 2, 2, 3};

TEST(CoveringArray, HasEveryCombinationOfThreeFactors) {
  const auto rows = CoveringArray(kLevels, 3);
  for (size_t a = 0; a < kLevels.size(); ++a) {
    for (size_t b = a + 1; b < kLevels.size(); ++b) {
      for (size_t c = b + 1; c < kLevels.size(); ++c) {
        std::set<std::vector<int>> seen;
        for (const std::vector<int>& row : rows) seen.insert({row[a], row[b], row[c]});
        EXPECT_EQ(seen.size(), size_t(kLevels[a] * kLevels[b] * kLevels[c])) << a << " " << b << " " << c;
      }
    }
  }
}

TEST(CoveringArray, NeedsFewRows) {
  EXPECT_LE(CoveringArray(kLevels, 2).size(), 18u);  // 4 * 3 at least
  EXPECT_LE(CoveringArray(kLevels, 3).size(), 60u);  // 4 * 3 * 3 at least, of 288
  EXPECT_EQ(CoveringArray({2, 3}, 2).size(), 6u);
}

}  // namespace
}  // namespace foredraft
