#include "tools/validate_mtp/mtp_reference.h"

namespace foredraft::reference {

std::unique_ptr<MtpReference> MtpReference::Create(const Weights& weights, const ModelConfig& config) {
  return config.v4 ? CreateV4Reference(weights, config) : CreateV3Reference(weights, config);
}

Vector MtpReference::Stored(Vector x) const {
  if (weights_.rounds()) {
    for (double& value : x) value = RoundToBf16(value);
  }
  return x;
}

Vector MtpReference::Linear(const std::string& module, Vector x) const {
  return Product(weights_.Matrix(module), Stored(std::move(x)));
}

Vector MtpReference::Norm(std::span<const double> x, const std::string& module) const {
  return RmsNorm(x, weights_.Norm(module), config_.rms_norm_eps);
}

}  // namespace foredraft::reference
