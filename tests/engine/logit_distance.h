#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

namespace foredraft {

// Between rows of logits and their reference.
struct LogitDistance {
  std::vector<double> errors;  // of rows: largest difference over the reference row's root mean square
  double error_sum = 0;
  double largest_error = 0;
  int rows = 0;
  int same_argmax = 0;

  void Add(const std::vector<float>& logits, const std::vector<float>& reference, int vocab_size) {
    ASSERT_EQ(logits.size(), reference.size());
    for (size_t first = 0; first < logits.size(); first += vocab_size) {
      const auto ours = logits.begin() + first;
      const auto theirs = reference.begin() + first;
      double squares = 0;
      double largest = 0;
      for (int v = 0; v < vocab_size; ++v) {
        squares += double(theirs[v]) * theirs[v];
        largest = std::max(largest, std::abs(double(ours[v]) - theirs[v]));
        ASSERT_FALSE(std::isnan(ours[v])) << "row " << first / vocab_size;
      }
      const double error = largest / std::sqrt(squares / vocab_size);
      errors.push_back(error);
      error_sum += error;
      largest_error = std::max(largest_error, error);
      same_argmax += std::max_element(ours, ours + vocab_size) - ours ==
                     std::max_element(theirs, theirs + vocab_size) - theirs;
      ++rows;
    }
  }
  int rows_above(double error) const {
    return static_cast<int>(std::count_if(errors.begin(), errors.end(), [&](double e) { return e > error; }));
  }
  double mean_error() const { return error_sum / rows; }
  double argmax_agreement() const { return double(same_argmax) / rows; }
};

}  // namespace foredraft
