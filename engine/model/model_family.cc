#include "engine/model/model_family.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "engine/model/deepseek_v3/deepseek_v3_families.h"

namespace foredraft {
namespace {

// DeepSeek-V4 (Flash, Pro) with MTP modules. Its fields are read by engine/model/deepseek_v4.
constexpr ModelFamily kDeepseekV4 = {
    .architecture = "DeepseekV4ForCausalLM", .model_type = "deepseek_v4", .deepseek_v4 = true};

// The first row of an architecture is the family of a config.json without model_type.
constexpr const ModelFamily* kModelFamilies[] = {&kDeepseekV3,  &kKimiK2,    &kJoyaiLlmFlash, &kDeepseekV32,
                                                 &kGlm4MoeLite, &kGlmMoeDsa, &kDeepseekV4};

}  // namespace

const ModelFamily* FindModelFamily(std::string_view architecture, std::string_view model_type) {
  for (const ModelFamily* family : kModelFamilies) {
    if (family->architecture == architecture && (model_type.empty() || family->model_type == model_type)) {
      return family;
    }
  }
  return nullptr;
}

std::string KnownArchitectures() {
  std::vector<std::string> names;
  for (const ModelFamily* family : kModelFamilies) {
    const std::string name(family->architecture);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return absl::StrJoin(names, ", ");
}

std::string KnownModelTypes(std::string_view architecture) {
  std::vector<std::string> names;
  for (const ModelFamily* family : kModelFamilies) {
    if (family->architecture == architecture) names.emplace_back(family->model_type);
  }
  return absl::StrJoin(names, ", ");
}

}  // namespace foredraft
