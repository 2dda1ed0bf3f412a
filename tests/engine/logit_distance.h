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
  double divergence_sum = 0;  // of the rows' Kullback-Leibler divergences from the reference, in nats
  double largest_divergence = 0;
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
      const double divergence = DivergenceOf(ours, theirs, vocab_size);
      divergence_sum += divergence;
      largest_divergence = std::max(largest_divergence, divergence);
      ++rows;
    }
  }
  // The sum of p log(p / q), p and q the softmaxes of a reference's logits and of ours.
  template <class Row>
  static double DivergenceOf(Row ours, Row theirs, int vocab_size) {
    const auto log_sum = [&](Row row) {
      const double largest = *std::max_element(row, row + vocab_size);
      double sum = 0;
      for (int v = 0; v < vocab_size; ++v) sum += std::exp(row[v] - largest);
      return largest + std::log(sum);
    };
    const double of_ours = log_sum(ours), of_theirs = log_sum(theirs);
    double divergence = 0;
    for (int v = 0; v < vocab_size; ++v) {
      const double log_p = theirs[v] - of_theirs;
      divergence += std::exp(log_p) * (log_p - (ours[v] - of_ours));
    }
    return divergence;
  }
  int rows_above(double error) const {
    return static_cast<int>(std::count_if(errors.begin(), errors.end(), [&](double e) { return e > error; }));
  }
  double mean_error() const { return error_sum / rows; }
  double mean_divergence() const { return divergence_sum / rows; }
  double argmax_agreement() const { return double(same_argmax) / rows; }
};

}  // namespace foredraft
