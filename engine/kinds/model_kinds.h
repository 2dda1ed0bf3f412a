#pragma once

// The table of kinds of models. It knows its members, so it stands above them: readers of a config.json find
// the kind here and hand it on in ModelConfig::kind.

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

// "a, b": all architectures, or all model_types of one.
std::string KnownArchitectures();
std::string KnownModelTypes(std::string_view architecture);

}  // namespace foredraft
