#pragma once

// Writes the quantization_config that tells other programs which tensors `quantize` and `synth` have
// quantised.

#include "engine/checkpoint/model_description.h"
#include "engine/model/model_config.h"
#include "kernels/weight_format.h"
#include "nlohmann/json.hpp"

namespace foredraft {

// `config` with projections in `format`, or in the kind's own formats for it (ModelKind::choose_formats).
ModelConfig WithProjections(ModelConfig config, const WeightFormat& format);

// Writes to a config.json how tensors are stored, by config.projections and config.experts. Matrices that are
// not quantised are listed in `ignore` or modules_to_not_convert.
void SetQuantization(const ModelConfig& config, const ModelDescription& description,
                     nlohmann::ordered_json& config_json);

}  // namespace foredraft
