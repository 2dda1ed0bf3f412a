#pragma once

// softplus(x) = ln(1 + e^x), by additions, products and one division: the same bits on every machine, as
// kernels/exp.h.

#include "kernels/exp.h"

namespace foredraft {

// Within 6 units in the last place: Exp's 2, and those of a few roundings. 0 below -87.3; NaN for NaN.
constexpr float Softplus(float x) {
  const float y = Exp(x < 0.0f ? x : -x);  // e^-|x|, in (0, 1]
  // ln(1 + y) = 2 atanh(s) = 2 (s + s^3/3 + ...), s = y / (2 + y) <= 1/3: the remainder is below 2e-9 of it.
  const float s = y / (2.0f + y);
  const float square = s * s;
  float series = 1.0f / 15.0f;
  series = series * square + 1.0f / 13.0f;
  series = series * square + 1.0f / 11.0f;
  series = series * square + 1.0f / 9.0f;
  series = series * square + 1.0f / 7.0f;
  series = series * square + 1.0f / 5.0f;
  series = series * square + 1.0f / 3.0f;
  const float log = 2.0f * (s + s * square * series);
  return (x > 0.0f ? x : 0.0f) + log;
}

}  // namespace foredraft
