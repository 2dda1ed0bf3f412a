#include "engine/kinds/model_kinds.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_join.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/deepseek_v4/deepseek_v4_kind.h"

namespace foredraft {
namespace {

constexpr const ModelKind* kModelKinds[] = {&kDeepseekV3Kind, &kDeepseekV4Kind};

}  // namespace

std::optional<NamedKind> FindModelKind(std::string_view architecture, std::string_view model_type) {
  for (const ModelKind* kind : kModelKinds) {
    for (const ModelName& name : kind->names) {
      if (name.architecture == architecture && (model_type.empty() || name.model_type == model_type)) {
        return NamedKind{kind, name};
      }
    }
  }
  return std::nullopt;
}

std::string KnownArchitectures() {
  std::vector<std::string> names;
  for (const ModelKind* kind : kModelKinds) {
    for (const ModelName& name : kind->names) {
      if (std::find(names.begin(), names.end(), name.architecture) == names.end()) {
        names.emplace_back(name.architecture);
      }
    }
  }
  return absl::StrJoin(names, ", ");
}

std::string KnownModelTypes(std::string_view architecture) {
  std::vector<std::string> names;
  for (const ModelKind* kind : kModelKinds) {
    for (const ModelName& name : kind->names) {
      if (name.architecture == architecture) names.emplace_back(name.model_type);
    }
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace foredraft
