#pragma once

// What config.json says of rotations in more than one place: rope_scaling (transformers 4), rope_parameters
// (5), and a base beside them. Places that agree are read; what they contradict is refused by name.

#include <optional>

#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"
#include "engine/model/rope.h"

namespace foredraft {

inline constexpr double kLeastTheta = 1.001;
inline constexpr double kMostTheta = 1e12;

// The base that `rope`, an object of `parent`, has; `theta` where it has none. `outer` is the key beside the
// object that may say `theta`: an object with another base is then refused.
double ReadInnerTheta(JsonFields& rope, const JsonFields& parent, const char* outer, double theta);

// Refuses rope_scaling where it and rope_parameters scale differently.
void RequireSameScaling(const std::optional<RopeScaling>& older, const std::optional<RopeScaling>& newer,
                        JsonFields& fields);

// rope_theta and rope_scaling of a model that rotates as DeepSeek-V3 does: 10000 and none where config.json
// has neither. YaRN alone scales.
void ReadRope(JsonFields& fields, ModelConfig& config);

}  // namespace foredraft
