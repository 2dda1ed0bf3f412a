#pragma once

// Softmax attention of one head in plain loops and double, with the error bound of a computation whose
// scores and sums are FP32, and whose weights are rounded to BF16 before the product with the values.

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tests/ops/op_rig.h"

namespace foredraft {

struct HeadReference {
  std::vector<double> out;        // [value_len]
  std::vector<double> tolerance;  // [value_len], rounding of the output to BF16 included
};

// query and key(t) are [key_len], value(t) is [value_len], for t in [0, count).
inline HeadReference ReferenceAttention(const std::vector<float>& query, double scale, int count,
                                        const std::function<std::vector<float>(int t)>& key,
                                        const std::function<std::vector<float>(int t)>& value) {
  std::vector<double> weights(count);
  double magnitude = 0.0;  // the largest sum of |products| of a score
  for (int t = 0; t < count; ++t) {
    const std::vector<float> k = key(t);
    double products = 0.0;
    for (size_t i = 0; i < query.size(); ++i) {
      const double product = scale * query[i] * k[i];
      weights[t] += product;
      products += std::abs(product);
    }
    magnitude = std::max(magnitude, products);
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);

  // A score's error comes from the roundings of its dot product. e^x turns it into a relative error of the
  // weight, and the sum of the weights has the same: hence twice. Exp, the sums over positions and the merges
  // of splits add a few roundings per term. The products take BF16 weights, the sum of the weights the
  // unrounded ones: each term has one such rounding more.
  const double score_error = (static_cast<double>(query.size()) + 4) * kF32Roundoff * magnitude;
  const double relative = 2 * score_error + (3 * count + 64) * kF32Roundoff + kBf16Roundoff;
  HeadReference reference;
  std::vector<double> magnitudes;
  for (int t = 0; t < count; ++t) {
    const std::vector<float> v = value(t);
    reference.out.resize(v.size());
    magnitudes.resize(v.size());
    for (size_t i = 0; i < v.size(); ++i) {
      const double term = weights[t] / sum * v[i];
      reference.out[i] += term;
      magnitudes[i] += std::abs(term);
    }
  }
  for (size_t i = 0; i < magnitudes.size(); ++i) {
    const double error = relative * magnitudes[i];
    reference.tolerance.push_back(error + kBf16Roundoff * (std::abs(reference.out[i]) + error));
  }
  return reference;
}

inline std::vector<float> Floats(const bf16* x, int count) {
  std::vector<float> values(count);
  for (int i = 0; i < count; ++i) values[i] = ToFloat(x[i]);
  return values;
}

inline std::vector<float> Joined(std::vector<float> a, const std::vector<float>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace foredraft
