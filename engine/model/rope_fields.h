#pragma once

// Reads the rotation of a config.json, which may state it in several places: rope_scaling (transformers 4),
// rope_parameters (5), and a base next to them. Places that contradict each other are refused by name.

#include <optional>

#include "engine/model/json_fields.h"
#include "engine/model/model_config.h"
#include "engine/model/rope.h"

namespace foredraft {

inline constexpr double kLeastTheta = 1.001;
inline constexpr double kMostTheta = 1e12;

// The base in `rope`, an object of `parent`; `theta` where it has none. `outer` is the key next to the object
// that may state `theta`: if it does, an object with another base is refused.
double ReadInnerTheta(JsonFields& rope, const JsonFields& parent, const char* outer, double theta);

// Refuses rope_scaling if rope_parameters scales differently.
void RequireSameScaling(const std::optional<RopeScaling>& older, const std::optional<RopeScaling>& newer,
                        JsonFields& fields);

// Reads rope_theta (default 10000) and rope_scaling (default none) of a model that rotates as DeepSeek-V3
// does. The only scaling is YaRN.
void ReadRope(JsonFields& fields, ModelConfig& config);

}  // namespace foredraft
