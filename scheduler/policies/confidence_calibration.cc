#include "scheduler/policies/confidence_calibration.h"

#include <algorithm>
#include <cmath>

namespace foredraft {
namespace {

constexpr double kMemory = 2000;  // events after which one weighs 1/e
constexpr double kPrior = 8;
constexpr double kWidest = 8;  // beyond it a logit says no more
constexpr double kLeastSlope = 0.1, kLargestSlope = 4, kLargestOffset = 6;
constexpr double kMeanWeight = 0.002;  // EWMA weight of a draft in the mean chance

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double Within(float logit) { return std::clamp<double>(logit, -kWidest, kWidest); }

}  // namespace

ConfidenceCalibration::ConfidenceCalibration(int max_draft_len)
    : scales_(max_draft_len), of_draft_(max_draft_len) {}

double ConfidenceCalibration::Chance(int k, float logit) const {
  const DraftCalibration& scale = scales_[k - 1];
  return Sigmoid(scale.slope * Within(logit) + scale.offset);
}

void ConfidenceCalibration::Expect(int k, float logit, double reached) {
  double& mean = of_draft_[k - 1].mean_chance;
  mean += kMeanWeight * reached * (Chance(k, logit) - mean);
}

void ConfidenceCalibration::Observe(int k, float logit, bool accepted) {
  const double kept = 1 - 1 / kMemory, x = Within(logit), p = Chance(k, logit), y = accepted ? 1 : 0;
  for (Bin& bin : bins_) bin = {kept * bin.count, kept * bin.predicted, kept * bin.accepted};
  Bin& bin = bins_[std::min<int>(static_cast<int>(p * bins_.size()), static_cast<int>(bins_.size()) - 1)];
  bin = {bin.count + 1, bin.predicted + p, bin.accepted + y};

  OfDraft& h = of_draft_[k - 1];
  const double weight = p * (1 - p);
  h.xx = kept * h.xx + weight * x * x;
  h.x1 = kept * h.x1 + weight * x;
  h.ones = kept * h.ones + weight;
  DraftCalibration& scale = scales_[k - 1];
  const double of_slope = (p - y) * x + (1 - kept) * kPrior * (scale.slope - 1);
  const double of_offset = (p - y) + (1 - kept) * kPrior * scale.offset;
  const double xx = h.xx + kPrior, ones = h.ones + kPrior;
  const double determinant = xx * ones - h.x1 * h.x1;  // at least kPrior^2
  const double slope = scale.slope - (ones * of_slope - h.x1 * of_offset) / determinant;
  const double offset = scale.offset - (xx * of_offset - h.x1 * of_slope) / determinant;
  scale = {.slope = static_cast<float>(std::clamp(slope, kLeastSlope, kLargestSlope)),
           .offset = static_cast<float>(std::clamp(offset, -kLargestOffset, kLargestOffset))};
}

double ConfidenceCalibration::error() const {
  double distance = 0, count = 0;
  for (const Bin& bin : bins_) {
    distance += std::abs(bin.predicted - bin.accepted);
    count += bin.count;
  }
  return count > 0 ? distance / count : 0;
}

}  // namespace foredraft
