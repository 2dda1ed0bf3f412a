#include "tools/validate_mtp/reference_parts.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace foredraft::reference {

bool NearTie(const ExpertChoice& exact, const ExpertChoice& rounded) {
  double shift = 0;
  for (size_t i = 0; i < exact.scores.size(); ++i) {
    shift = std::max(shift, std::abs(exact.scores[i] - rounded.scores[i]));
  }
  return exact.lead < 4 * shift;
}

Vector ReferenceParts::Stored(Vector x) const {
  if (weights_.rounds()) {
    for (double& value : x) value = RoundToBf16(value);
  }
  return x;
}

Vector ReferenceParts::Linear(const std::string& module, Vector x) const {
  return Product(weights_.Matrix(module), Stored(std::move(x)));
}

Vector ReferenceParts::Norm(std::span<const double> x, const std::string& module) const {
  return RmsNorm(x, weights_.Norm(module), config_.rms_norm_eps);
}

}  // namespace foredraft::reference
