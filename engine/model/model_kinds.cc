#include "engine/model/model_kinds.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/check.h"
#include "engine/model/deepseek_v3/deepseek_v3_kind.h"
#include "engine/model/deepseek_v4/deepseek_v4_kind.h"
#include "engine/model/model.h"

namespace foredraft {
namespace {

constexpr const ModelKind* kModelKinds[] = {&kDeepseekV3Kind, &kDeepseekV4Kind};

}  // namespace

const ModelKind& KindOf(const ModelConfig& config) {
  const std::optional<NamedKind> found = FindModelKind(config.architecture, "");
  CHECK(found.has_value()) << config.architecture;
  return *found->kind;
}

absl::StatusOr<std::unique_ptr<Model>> CreateModel(Device& device, Communicator& comm,
                                                   const ModelConfig& config, LoadedWeights weights,
                                                   const ForwardCapacity& capacity) {
  return KindOf(config).create(device, comm, config, std::move(weights), capacity);
}

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
