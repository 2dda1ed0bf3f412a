#pragma once

// The quantization_config that tells other programs which tensors `quantize` and `synth` quantised.

#include "engine/checkpoint/model_description.h"
#include "engine/model/model_config.h"
#include "kernels/weight_format.h"
#include "nlohmann/json.hpp"

namespace foredraft {

// The shape with projections in `format`, or in what the kind of model has of that sort
// (ModelKind::choose_formats).
ModelConfig WithProjections(ModelConfig config, const WeightFormat& format);

// Writes into a config.json how config.projections and config.experts say that the tensors are stored. The
// matrices that stay as they are stand in `ignore`, or in modules_to_not_convert.
void SetQuantization(const ModelConfig& config, const ModelDescription& description,
                     nlohmann::ordered_json& config_json);

}  // namespace foredraft
