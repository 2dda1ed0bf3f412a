#pragma once

// Reads a ModelConfig from a checkpoint's config.json.

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"

namespace foredraft {

// INVALID_ARGUMENT names file, field, value and what is allowed. Refused by name: unknown architectures,
// checkpoints with a drafter other than MTP modules, and absent fields for which the family has no default.
absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& config_json_path);
// ReadModelConfig for JSON text; `file` names it in errors.
absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, const std::string& file);

}  // namespace foredraft
