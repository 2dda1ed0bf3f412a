#pragma once

// How far a drafter's confidences can be believed, learned from what became of its drafts. A drafter is
// trained to say how near its distribution is to the target's; what counts here is whether the draft *is* the
// token that the target chooses. So for each draft k of a step
//
//   P(draft k is accepted, given that those before it were) = sigmoid(a_k x + b_k),  x: the confidence's
//   logit
//
// and (a, b) is a logistic regression with a prior and forgetting, a Newton step per event y in {0, 1}:
//
//   p = sigmoid(a x + b),  u = (x, 1),  w = 1 - 1/kMemory
//   H <- w H + p (1 - p) u u^T
//   (a, b) <- (a, b) - (H + kPrior I)^-1 ((p - y) u + (1 - w) kPrior ((a, b) - (1, 0)))
//
// with x within +-kWidest, and a and b within bounds. Only verified drafts are events. Drafts with a low x
// are cut more often, but given x that does not bias the fit. Data in, data out. Owner: DraftPolicy. Thread:
// scheduler.

#include <array>
#include <vector>

#include "config/draft_calibration.h"

namespace foredraft {

class ConfidenceCalibration {
 public:
  explicit ConfidenceCalibration(int max_draft_len);

  // Draft k (1..Kmax) was verified, and the drafts before it were accepted.
  void Observe(int k, float logit, bool accepted);
  // Notes a draft k whose fate is not known yet. reached: the chance that the drafts before it are accepted.
  void Expect(int k, float logit, double reached);

  // The chance that draft k is accepted, given that those before it were.
  double Chance(int k, float logit) const;
  // The mean of Chance over the drafts passed to Expect, weighted by `reached`. It includes drafts that are
  // never verified.
  double MeanChance(int k) const { return of_draft_[k - 1].mean_chance; }

  // [Kmax]
  const std::vector<DraftCalibration>& scales() const { return scales_; }

  // The mean distance between what was predicted and what happened, over recent events in ten bins of the
  // prediction. 0 before the first event.
  double error() const;

 private:
  struct OfDraft {
    double xx = 0, x1 = 0, ones = 0;  // H
    double mean_chance = 0.75;
  };
  struct Bin {
    double count = 0, predicted = 0, accepted = 0;
  };

  std::vector<DraftCalibration> scales_;
  std::vector<OfDraft> of_draft_;
  std::array<Bin, 10> bins_{};
};

}  // namespace foredraft
