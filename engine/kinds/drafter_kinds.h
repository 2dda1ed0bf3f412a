#pragma once

// The table of kinds of drafters. It includes all kinds, so it is a storey above them: readers of a
// configuration find the kind here and pass it on in EngineOptions::drafter.

#include <span>

#include "config/config.h"
#include "engine/model/model_config.h"
#include "engine/spec/drafter_kind.h"
#include "scheduler/drafter_requirements.h"

namespace foredraft {

std::span<const DrafterKind* const> DrafterKinds();

// The kind that the configuration selects; null if it has no drafts.
const DrafterKind* SelectedDrafter(const Config& config);

// The requirements of the drafter that the configuration selects, for this model.
DrafterRequirements DrafterRequirementsOf(const Config& config, const ModelConfig& model);

}  // namespace foredraft
