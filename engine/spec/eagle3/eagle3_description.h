#pragma once

// The tensors of an Eagle3 head's checkpoint, and its file.

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"
#include "engine/model/draft_head.h"

namespace foredraft {

// Describes the weights of a head, Eagle3Weights, which are whole on every rank.
ModelDescription DescribeEagle3(const DraftHead& head);

// Opens the checkpoint of a head: Find takes the names of DescribeEagle3, whichever spelling the file has
// ("model." or nothing in front, "midlayer." or "layers.0.").
absl::StatusOr<Checkpoint> OpenEagle3(const std::string& dir);

}  // namespace foredraft
