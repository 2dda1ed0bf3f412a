#include "tools/validate_mtp/reference_math.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <numeric>

#include "base/check.h"

namespace foredraft::reference {

double RoundToBf16(double x) {
  int exponent = 0;
  const double fraction = std::frexp(x, &exponent);  // in [0.5, 1)
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 8)), exponent - 8);
}

double Dot(std::span<const double> a, std::span<const double> b) {
  CHECK_EQ(a.size(), b.size());
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

Vector Product(const Table& weight, std::span<const double> x) {
  Vector out;
  for (int64_t row = 0; row < weight.rows; ++row) out.push_back(Dot(weight.row(row), x));
  return out;
}

Vector RmsNorm(std::span<const double> x, std::span<const double> weight, double eps) {
  const double scale = 1 / std::sqrt(Dot(x, x) / static_cast<double>(x.size()) + eps);
  Vector out;
  for (size_t i = 0; i < x.size(); ++i) out.push_back(x[i] * scale * (weight.empty() ? 1 : weight[i]));
  return out;
}

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Silu(double x) { return x * Sigmoid(x); }

Vector Frequencies(int dim, double theta, const std::optional<RopeScaling>& scaling) {
  Vector frequencies;
  for (int i = 0; i < dim / 2; ++i) frequencies.push_back(std::pow(theta, -2.0 * i / dim));
  if (!scaling) return frequencies;
  const auto corr = [&](double turns) {
    return dim * std::log(scaling->original_max_position_embeddings / (2 * std::numbers::pi * turns)) /
           (2 * std::log(theta));
  };
  const double low = std::max(std::floor(corr(scaling->beta_fast)), 0.0);
  const double high = std::min(std::ceil(corr(scaling->beta_slow)), dim - 1.0);
  for (int i = 0; i < dim / 2; ++i) {
    const double ramp = std::clamp((i - low) / std::max(high - low, 0.001), 0.0, 1.0);
    frequencies[i] *= ramp / scaling->factor + (1 - ramp);
  }
  return frequencies;
}

void Rotate(std::span<double> x, int position, std::span<const double> frequencies, double sign,
            double factor) {
  CHECK_EQ(x.size(), 2 * frequencies.size());
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double cos = factor * std::cos(position * frequencies[i]);
    const double sin = factor * sign * std::sin(position * frequencies[i]);
    const double even = x[2 * i], odd = x[2 * i + 1];
    x[2 * i] = even * cos - odd * sin;
    x[2 * i + 1] = odd * cos + even * sin;
  }
}

Vector Attend(std::span<const double> scores, std::span<const std::span<const double>> values,
              std::optional<double> sink) {
  const double largest = *std::max_element(scores.begin(), scores.end());
  double sum = sink ? std::exp(*sink - largest) : 0;
  Vector out(values[0].size());
  for (size_t j = 0; j < scores.size(); ++j) {
    const double share = std::exp(scores[j] - largest);
    sum += share;
    for (size_t i = 0; i < out.size(); ++i) out[i] += share * values[j][i];
  }
  for (double& value : out) value /= sum;
  return out;
}

std::vector<int> Largest(std::span<const double> values, int count) {
  std::vector<int> order(values.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return values[a] > values[b]; });
  order.resize(count);
  return order;
}

double Lead(std::span<const double> values, int count) {
  if (count >= static_cast<int>(values.size())) return std::numeric_limits<double>::infinity();
  const std::vector<int> order = Largest(values, count + 1);
  return values[order[count - 1]] - values[order[count]];
}

}  // namespace foredraft::reference
