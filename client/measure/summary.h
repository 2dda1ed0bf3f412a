#pragma once

// Summarizes a set of measurements.

#include <cstdint>
#include <vector>

namespace foredraft {

struct WeightedSample {
  double value;
  int64_t weight;  // counts as this many samples of the same value
};

// Percentiles are exact, with numpy's linear interpolation between neighbours: rank p/100 * (n - 1).
struct Summary {
  int64_t count = 0;  // 0: there were no samples, and all other fields are 0
  double mean = 0, min = 0, p25 = 0, p50 = 0, p75 = 0, p90 = 0, p99 = 0, max = 0;
};

Summary Summarize(std::vector<WeightedSample> samples);
Summary Summarize(const std::vector<double>& values);

// Percentiles 0, 1, ... `last`, as in Summary; empty without samples.
std::vector<double> Percentiles(std::vector<WeightedSample> samples, int last);

}  // namespace foredraft
