#pragma once

// The tensors of an Eagle3 head's checkpoint, and how to open it.

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"
#include "engine/model/draft_head.h"

namespace foredraft {

// Describes a head's weights (Eagle3Weights), which every rank has whole.
ModelDescription DescribeEagle3(const DraftHead& head);

// Opens a head's checkpoint. Find takes the names of DescribeEagle3, whichever spelling the file has
// ("model." or nothing in front, "midlayer." or "layers.0.").
absl::StatusOr<Checkpoint> OpenEagle3(const std::string& dir);

}  // namespace foredraft
