#pragma once

// Plain loops over double for the references of this folder. Clarity before speed; nothing here is shared
// with kernels/.

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "engine/model/model_config.h"

namespace foredraft::reference {

using Vector = std::vector<double>;

// A matrix row by row, or a vector as one row.
struct Table {
  int64_t rows = 0;
  int64_t cols = 0;
  Vector values;

  std::span<const double> row(int64_t index) const {
    return {values.data() + index * cols, static_cast<size_t>(cols)};
  }
};

// Rounds to 8 significant bits, ties to even.
double RoundToBf16(double x);

double Dot(std::span<const double> a, std::span<const double> b);
// The product weight * x, [weight.rows].
Vector Product(const Table& weight, std::span<const double> x);

// x / sqrt(mean(x²) + eps), times `weight` unless `weight` is empty.
Vector RmsNorm(std::span<const double> x, std::span<const double> weight, double eps);

double Sigmoid(double x);
double Silu(double x);

// [dim / 2] inverse frequencies, scaled by YaRN if `scaling` is given (docs/deepseek-v3.md section 3.3).
Vector Frequencies(int dim, double theta, const std::optional<RopeScaling>& scaling);
// Rotates the pairs (2i, 2i + 1) of x by sign * position * frequencies[i], and multiplies them by `factor`.
void Rotate(std::span<double> x, int position, std::span<const double> frequencies, double sign = 1,
            double factor = 1);

// The sum over keys of softmax weight times value; key j has score scores[j]. `sink` is one more score,
// without a value.
Vector Attend(std::span<const double> scores, std::span<const std::span<const double>> values,
              std::optional<double> sink = std::nullopt);

// Indices of the `count` largest values in descending order; ties: the lower index.
std::vector<int> Largest(std::span<const double> values, int count);
// How far the last of the `count` largest values is from the next one; infinity if all are chosen.
double Lead(std::span<const double> values, int count);

}  // namespace foredraft::reference
