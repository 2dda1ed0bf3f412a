#pragma once

// Test settings as a covering array: few rows of choices in which every combination of choices of every
// `strength` factors occurs. Strength 2 finds each fault that two factors cause together, strength 3 each
// that three do; the full product would need thousands of rows.

#include <vector>

namespace foredraft {

// level_counts[f] = choices of factor f. Rows are [factors] choices. Greedy and deterministic.
std::vector<std::vector<int>> CoveringArray(const std::vector<int>& level_counts, int strength);

}  // namespace foredraft
