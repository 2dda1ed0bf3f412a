#pragma once

// What a rank gets: the weights of one model, whichever it is. LoadWeights and MakeDummyWeights make them by
// config.architecture, and Rank::Allocate builds the model that computes with them.

#include <type_traits>
#include <utility>
#include <variant>

#include "absl/status/statusor.h"
#include "base/check.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/deepseek_v4/deepseek_v4_weights.h"

namespace foredraft {

// V3Weights: DeepSeek-V3 and the families that compute the same. V4Weights: DeepSeek-V4.
using LoadedWeights = std::variant<V3Weights, V4Weights>;

// The MTP modules among them.
inline int ModuleCount(const LoadedWeights& weights) {
  return static_cast<int>(std::visit(
      [](const auto& model) {
        if constexpr (std::is_same_v<decltype(model), const V4Weights&>) {
          return model.modules.size();
        } else {
          return model.mtp_modules.size();
        }
      },
      weights));
}

// The weights of a model that the caller knows: V3Weights or V4Weights.
template <class Weights>
absl::StatusOr<Weights> As(absl::StatusOr<LoadedWeights> loaded) {
  if (!loaded.ok()) return loaded.status();
  CHECK(std::holds_alternative<Weights>(*loaded));
  return std::get<Weights>(*std::move(loaded));
}

}  // namespace foredraft
