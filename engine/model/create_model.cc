#include "engine/model/create_model.h"

#include <utility>
#include <variant>

#include "engine/model/deepseek_v3/deepseek_v3.h"
#include "engine/model/deepseek_v4/deepseek_v4.h"

namespace foredraft {

absl::StatusOr<std::unique_ptr<Model>> CreateModel(Device& device, Communicator& comm,
                                                   const ModelConfig& config, LoadedWeights weights,
                                                   const ForwardCapacity& capacity) {
  if (auto* const v4 = std::get_if<V4Weights>(&weights)) {
    return DeepseekV4::Create(device, comm, config, std::move(*v4), capacity);
  }
  return DeepseekV3::Create(device, comm, config, std::get<ModelWeights>(std::move(weights)), capacity);
}

}  // namespace foredraft
