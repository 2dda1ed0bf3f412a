#include "engine/spec/eagle/eagle_drafter.h"

#include <memory>
#include <vector>

#include "base/status_macros.h"
#include "engine/spec/mtp_modules.h"
#include "engine/spec/recycling_drafter.h"

namespace foredraft {
namespace {

bool Selected(const SpeculativeConfig& config) {
  return config.decoding_type == DecodingType::kMtp && !config.use_mtp_vanilla;
}

void Check(const LoadedConfig& loaded, const ModelConfig& model, ConfigErrors& errors) {
  CheckModules(loaded, model, /*wanted=*/1, errors);
}

DrafterRequirements Requirements(const ModelConfig&, int max_draft_len) {
  return {.module_count = 1, .rows_ahead = max_draft_len};
}

std::vector<SlotRow> SlotRows(const EngineOptions&, const ModelConfig& model) {
  return {MtpModules::Boundaries(model, /*module_count=*/1)};
}

absl::StatusOr<std::unique_ptr<Drafter>> Create(const DrafterSetup& setup) {
  ASSIGN_OR_RETURN(const MtpModules module, MtpModules::Create(setup, /*module_count=*/1));
  return std::make_unique<RecyclingDrafter>(module);
}

}  // namespace

const DrafterKind kEagle = {.name = "eagle",
                            .selected = Selected,
                            .check = Check,
                            .requirements = Requirements,
                            .slot_rows = SlotRows,
                            .create = Create};

}  // namespace foredraft
