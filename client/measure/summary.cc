#include "client/measure/summary.h"

#include <algorithm>
#include <utility>

namespace foredraft {
namespace {

// Samples in ascending order, found by rank: a sample of weight w takes w ranks.
class Ranked {
 public:
  explicit Ranked(std::vector<WeightedSample> samples) : samples_(std::move(samples)) {
    std::sort(samples_.begin(), samples_.end(),
              [](const WeightedSample& a, const WeightedSample& b) { return a.value < b.value; });
    for (const WeightedSample& sample : samples_) ends_.push_back(count_ += sample.weight);
  }

  int64_t count() const { return count_; }
  double Percentile(double percent) const {
    const double rank = percent / 100 * static_cast<double>(count_ - 1);
    const int64_t below = static_cast<int64_t>(rank);
    const double low = At(below), high = At(std::min(below + 1, count_ - 1));
    return low + (high - low) * (rank - static_cast<double>(below));
  }

 private:
  double At(int64_t rank) const {
    return samples_[std::upper_bound(ends_.begin(), ends_.end(), rank) - ends_.begin()].value;
  }

  std::vector<WeightedSample> samples_;
  std::vector<int64_t> ends_;  // one past the last rank of each sample
  int64_t count_ = 0;
};

}  // namespace

Summary Summarize(std::vector<WeightedSample> samples) {
  if (samples.empty()) return {};
  double sum = 0;
  for (const WeightedSample& sample : samples) sum += sample.value * static_cast<double>(sample.weight);
  const Ranked ranked(std::move(samples));
  return {.count = ranked.count(),
          .mean = sum / static_cast<double>(ranked.count()),
          .min = ranked.Percentile(0),
          .p25 = ranked.Percentile(25),
          .p50 = ranked.Percentile(50),
          .p75 = ranked.Percentile(75),
          .p90 = ranked.Percentile(90),
          .p99 = ranked.Percentile(99),
          .max = ranked.Percentile(100)};
}

std::vector<double> Percentiles(std::vector<WeightedSample> samples, int last) {
  std::vector<double> percentiles;
  if (samples.empty()) return percentiles;
  const Ranked ranked(std::move(samples));
  for (int percent = 0; percent <= last; ++percent) percentiles.push_back(ranked.Percentile(percent));
  return percentiles;
}

Summary Summarize(const std::vector<double>& values) {
  std::vector<WeightedSample> samples;
  samples.reserve(values.size());
  for (const double value : values) samples.push_back({value, 1});
  return Summarize(std::move(samples));
}

}  // namespace foredraft
