#pragma once

// Reads the config.json of an Eagle3 head with MLA, in the forms that trainers write (docs/eagle3.md).

#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "config/config.h"
#include "engine/model/draft_head.h"
#include "engine/model/model_config.h"

namespace foredraft {

// Sets model.draft_head from the directory speculative_config.speculative_model: from its config.json and,
// unless load_format is dummy, from its tensors (which optional ones it has, and which tokens it can choose).
// INVALID_ARGUMENT names file and field: another kind of drafter, a head for another target, layers that are
// not stated.
absl::Status ReadEagle3(const Config& config, ModelConfig& model);

// Reads the fields of config.json alone. `layers`: eagle3_layers_to_capture; empty: the head's config.json
// decides.
absl::StatusOr<DraftHead> ParseEagle3Config(std::string_view json, const std::string& file,
                                            const ModelConfig& model, const std::vector<int>& layers);

}  // namespace foredraft
