#pragma once

// Reads the quantization_config of a config.json: FP8 blocks (quant_method fp8), compressed-tensors'
// pack-quantized (INT4, symmetric), mxfp4-pack-quantized (E2M1, an E8M0 scale per group of 32) and
// nvfp4-pack-quantized, or modelopt's NVFP4, which older checkpoints describe in hf_quant_config.json next to
// config.json. Which modules are quantised is read from the checkpoint's tensors, not from `targets` and
// `ignore`: in many checkpoints MTP modules are not packed although the lists do not mention them.

#include "engine/model/json_fields.h"
#include "kernels/weight_format.h"

namespace foredraft {

// The format of the projections; kBf16Format where neither `model` nor hf_quant_config.json has one. `model`
// keeps the first fault; the result is then unspecified.
WeightFormat ReadQuantization(JsonFields& model);

}  // namespace foredraft
