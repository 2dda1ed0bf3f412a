#pragma once

#include <cstdint>

namespace foredraft::cpu {

// Writes the places of the `top_k` highest of `count` > top_k scores, plus `first`, ascending. Among equal
// scores the lower places are chosen; NaN counts as -infinity, and the zeros are equal.
void SelectBest(const float* scores, int32_t count, int32_t first, int32_t top_k, int32_t* selected);

}  // namespace foredraft::cpu
