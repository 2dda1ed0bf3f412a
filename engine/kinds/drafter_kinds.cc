#include "engine/kinds/drafter_kinds.h"

#include "base/check.h"
#include "engine/spec/dspark/dspark_drafter.h"
#include "engine/spec/eagle/eagle_drafter.h"
#include "engine/spec/eagle3/eagle3_drafter.h"
#include "engine/spec/vanilla/vanilla_drafter.h"

namespace foredraft {

std::span<const DrafterKind* const> DrafterKinds() {
  static constexpr const DrafterKind* kKinds[] = {&kEagle, &kVanilla, &kDSpark, &kEagle3};
  return kKinds;
}

const DrafterKind* SelectedDrafter(const Config& config) {
  if (!config.speculative_config || config.speculative_config->max_draft_len == 0) return nullptr;
  for (const DrafterKind* kind : DrafterKinds()) {
    if (kind->selected(*config.speculative_config)) return kind;
  }
  CHECK(false) << "no drafter for " << NameOf(config.speculative_config->decoding_type);
}

DrafterRequirements DrafterRequirementsOf(const Config& config, const ModelConfig& model) {
  const DrafterKind* const kind = SelectedDrafter(config);
  if (kind == nullptr) return {};
  return kind->requirements(model, config.speculative_config->max_draft_len);
}

}  // namespace foredraft
