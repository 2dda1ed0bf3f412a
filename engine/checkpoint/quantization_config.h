#pragma once

// Which tensors of a model are quantised where this program chooses (quantize, synth, random weights), and
// the quantization_config that says so to other programs.
//
//   FP8     as DeepSeek does: all projections, kv_b too. Not router, eh_proj, norms, embedding, head.
//   4 bits  the same without kv_b and DeepSeek-V4's wo_a, whose parts are multiplied with by head, and
//           without weights whose columns are no multiple of the group. Parts that are fused into one weight
//           are packed together.
//
// DeepSeek-V4 has its own FP4: routed experts in groups with E8M0 scales, the other projections in FP8.

#include "absl/container/flat_hash_set.h"
#include "engine/checkpoint/model_description.h"
#include "engine/model/model_config.h"
#include "kernels/dtype.h"
#include "nlohmann/json.hpp"

namespace foredraft {

inline constexpr int kPackGroup = 32;  // the default: what K2-Thinking and MXFP4 have

// The weight's tensors are packed. False where config.pack_quantized is not set.
bool IsPackedByChoice(const ModelConfig& config, const WeightSpec& weight);
absl::flat_hash_set<const TensorSpec*> TensorsToPack(const ModelConfig& config,
                                                     const ModelDescription& description);

// The shape with projections in `dtype`: kBF16, kF8E4M3 or a 4-bit kind with this group.
ModelConfig WithProjections(ModelConfig config, DType dtype, int group = kPackGroup);

// Writes how config.fp8_blocks or config.pack_quantized say that the tensors are stored into a config.json.
// The matrices that stay as they are stand in `ignore`, or in modules_to_not_convert.
void SetQuantization(const ModelConfig& config, const ModelDescription& description,
                     nlohmann::ordered_json& config_json);

}  // namespace foredraft
