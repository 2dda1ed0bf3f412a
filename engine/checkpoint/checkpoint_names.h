#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"

namespace foredraft {

// Opens the checkpoint of `config`: Find takes the names of its description, whichever of the spellings that
// the model has the files use.
absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& dir, const ModelConfig& config);

}  // namespace foredraft
