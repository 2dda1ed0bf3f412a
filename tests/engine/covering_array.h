#ifndef FOREDRAFT_TESTS_ENGINE_COVERING_ARRAY_H_
#define FOREDRAFT_TESTS_ENGINE_COVERING_ARRAY_H_

// Rows of choices such that every pair of choices of every two factors stands in some row.

#include <vector>

namespace foredraft {

// level_counts[f] = choices of factor f. Greedy and deterministic: each row takes, factor by factor, the
// choice that covers most pairs not yet covered.
std::vector<std::vector<int>> PairwiseCoveringArray(const std::vector<int>& level_counts);

// Every combination.
std::vector<std::vector<int>> FullProduct(const std::vector<int>& level_counts);

}  // namespace foredraft

#endif  // FOREDRAFT_TESTS_ENGINE_COVERING_ARRAY_H_
