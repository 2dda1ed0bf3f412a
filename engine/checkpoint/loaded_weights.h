#pragma once

// The weights of one model on a rank's device, of any kind of model. The kind's description makes them
// (ModelKind::describe), a WeightSource fills them, and the kind's model takes them (ModelKind::create).

#include <any>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "base/check.h"

namespace foredraft {

class LoadedWeights {
 public:
  // Weights: a struct of views, whose module_count() says how many MTP modules it has. It keeps its address
  // when this object moves.
  template <class Weights>
  Weights& Emplace() {
    module_count_ = [](const std::any& weights) {
      return std::any_cast<const Weights&>(weights).module_count();
    };
    return weights_.emplace<Weights>();
  }

  // Null where the weights are of another kind.
  template <class Weights>
  const Weights* Find() const {
    return std::any_cast<Weights>(&weights_);
  }
  // The weights, for callers that know their kind.
  template <class Weights>
  Weights& Get() {
    Weights* const weights = std::any_cast<Weights>(&weights_);
    CHECK(weights != nullptr) << "the weights are of another kind of model";
    return *weights;
  }

  int module_count() const { return module_count_(weights_); }

  // The weights of a drafter in a checkpoint of its own (DrafterKind::describe). Null: none.
  void SetDrafter(LoadedWeights weights) {
    drafter_ = std::make_shared<const LoadedWeights>(std::move(weights));
  }
  const std::shared_ptr<const LoadedWeights>& drafter() const { return drafter_; }

 private:
  std::any weights_;
  int (*module_count_)(const std::any& weights) = nullptr;
  std::shared_ptr<const LoadedWeights> drafter_;
};

// The weights of a model whose kind the caller knows.
template <class Weights>
absl::StatusOr<Weights> As(absl::StatusOr<LoadedWeights> loaded) {
  if (!loaded.ok()) return loaded.status();
  return std::move(loaded->Get<Weights>());
}

}  // namespace foredraft
