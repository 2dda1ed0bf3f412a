#pragma once

// The parts that the references of this folder share: products and norms over a checkpoint's weights, rounded
// where the recipes round, and the choice of experts.

#include <limits>
#include <string>

#include "tools/validate_mtp/reference_weights.h"

namespace foredraft::reference {

// The scores by which a layer chose experts, and the lead of the chosen experts over the next one. Without
// experts, scores are empty and the lead is infinite.
struct ExpertChoice {
  Vector scores;
  double lead = std::numeric_limits<double>::infinity();
};

// Whether rounding alone may choose other experts than `exact` did. The device's scores are off, in either
// direction, by at most twice the change that rounding made here, and two experts change places when the
// difference of their scores changes sign.
bool NearTie(const ExpertChoice& exact, const ExpertChoice& rounded);

class ReferenceParts {
 protected:
  // `weights` and `config` outlive this object.
  ReferenceParts(const Weights& weights, const ModelConfig& config) : weights_(weights), config_(config) {}

  // `x` as the recipes pass it to a product or to the cache.
  Vector Stored(Vector x) const;
  Vector Linear(const std::string& module, Vector x) const;
  Vector Norm(std::span<const double> x, const std::string& module) const;

  const Weights& weights_;
  const ModelConfig& config_;
};

}  // namespace foredraft::reference
