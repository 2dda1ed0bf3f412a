#pragma once

// A row rounded to NVFP4 as the definition says (kernels/rules/nvfp4_rows.h), by search in tables of values.

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/dtype.h"

namespace foredraft {

// The code below `count` whose value is nearest to x >= 0, ties to the even code.
template <class ValueOf>
int NearestOf(double x, int count, const ValueOf& value_of) {
  int best = 0;
  x = std::min(x, double{value_of(count - 1)});
  for (int code = 1; code < count; ++code) {
    const double distance = std::abs(value_of(code) - x), shortest = std::abs(value_of(best) - x);
    if (distance < shortest || (distance == shortest && code % 2 == 0)) best = code;
  }
  return best;
}

inline double E4m3(int code) { return F8E4M3ToFloat(static_cast<uint8_t>(code)); }
inline double E2m1(int code) { return Code4ToFloat(DType::kF4E2M1, code); }

// A quotient of floats rounded to float: the one of doubles is exact enough to be rounded a second time.
inline float FloatQuotient(float x, float y) { return static_cast<float>(double{x} / y); }

// A row as the definition rounds it.
struct RoundedRow {
  std::vector<int> codes;
  std::vector<int> scales;

  RoundedRow(const std::vector<bf16>& x, float input_scale) {
    for (size_t first = 0; first < x.size(); first += 16) {
      float largest = 0;
      bool finite = true;
      for (size_t i = first; i < first + 16; ++i) {
        finite &= std::isfinite(ToFloat(x[i]));
        largest = std::max(largest, std::abs(ToFloat(x[i])));
      }
      if (!finite) {
        scales.push_back(0x7f);
        codes.insert(codes.end(), 16, 0);
        continue;
      }
      scales.push_back(NearestOf(FloatQuotient(largest, 6 * input_scale), 127, E4m3));
      const float product = static_cast<float>(E4m3(scales.back())) * input_scale;
      for (size_t i = first; i < first + 16; ++i) {
        const float value = ToFloat(x[i]);
        const int code = product == 0 ? 0 : NearestOf(FloatQuotient(std::abs(value), product), 8, E2m1);
        codes.push_back(product != 0 && std::signbit(value) ? code + 8 : code);
      }
    }
  }

  // In BF16, which holds them.
  std::vector<bf16> Values() const {
    std::vector<bf16> values;
    for (size_t i = 0; i < codes.size(); ++i) {
      const double value = E2m1(codes[i]) * E4m3(scales[i / 16]);
      const bf16 rounded = ToBf16(static_cast<float>(value));
      values.push_back(std::isnan(value) ? bf16{0x7fc0} : rounded);
    }
    return values;
  }
};

}  // namespace foredraft
