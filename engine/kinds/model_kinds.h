#pragma once

// The table of kinds of models. It includes all kinds, so it is a storey above them: readers of a config.json
// find the kind here and pass it on in ModelConfig::kind.

#include <optional>
#include <string>
#include <string_view>

#include "engine/model/model_kind.h"

namespace foredraft {

struct NamedKind {
  const ModelKind* kind;
  ModelName name;
};
// An empty `model_type` (absent from config.json) gives the first name of the architecture.
std::optional<NamedKind> FindModelKind(std::string_view architecture, std::string_view model_type);

// All architectures, and all model_types of one architecture, as "a, b".
std::string KnownArchitectures();
std::string KnownModelTypes(std::string_view architecture);

}  // namespace foredraft
