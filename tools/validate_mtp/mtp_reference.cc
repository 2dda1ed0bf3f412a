#include "tools/validate_mtp/mtp_reference.h"

namespace foredraft::reference {

std::unique_ptr<MtpReference> MtpReference::Create(const Weights& weights, const ModelConfig& config) {
  return config.v4 ? CreateV4Reference(weights, config) : CreateV3Reference(weights, config);
}

}  // namespace foredraft::reference
