#pragma once

// Maps the tensor names of DeepSeek-V4 checkpoints that transformers has saved to DeepSeek's names.
// transformers saves in two ways (docs/deepseek-v4.md section 7): by default mostly DeepSeek's names after
// "model.", or only its own names (save_original_format=False), with one tensor for all experts of a layer.

#include <string_view>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"

namespace foredraft {

// DeepSeek's name of a tensor, from any of its three spellings. Returns unknown names unchanged.
std::string DeepseekV4Name(std::string_view stored);

// For Checkpoint::Rename. Cuts experts.gate_up_proj [E, 2 M, D] and experts.down_proj [E, D, M] into the
// matrices of the experts. If they have other shapes they keep their names, which no description has.
std::vector<NamedPart> NameDeepseekV4(const TensorEntry& stored, const ModelConfig& config);

}  // namespace foredraft
