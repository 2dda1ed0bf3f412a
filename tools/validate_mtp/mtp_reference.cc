#include "tools/validate_mtp/mtp_reference.h"

#include "engine/model/deepseek_v4/deepseek_v4_shape.h"

namespace foredraft::reference {

std::unique_ptr<MtpReference> MtpReference::Create(const Weights& weights, const ModelConfig& config) {
  return FindV4Shape(config) != nullptr ? CreateV4Reference(weights, config)
                                        : CreateV3Reference(weights, config);
}

}  // namespace foredraft::reference
