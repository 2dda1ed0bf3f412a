#pragma once

// The tensors of a DeepSeek-V4 checkpoint that transformers has saved, under DeepSeek's names. transformers
// saves in two ways (docs/deepseek-v4.md section 7): mostly DeepSeek's names after "model.", which is its
// default, or all of its own (save_original_format=False), where one tensor has the experts of a layer.

#include <string_view>

#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"

namespace foredraft {

// DeepSeek's name of a tensor, for any of the three spellings of it. A name that belongs to none comes back
// as it is.
std::string DeepseekV4Name(std::string_view stored);

// For Checkpoint::Rename. Cuts experts.gate_up_proj [E, 2 M, D] and experts.down_proj [E, D, M] into the
// matrices of the experts; of other shapes they keep their names, which no description has.
std::vector<NamedPart> NameDeepseekV4(const TensorEntry& stored, const ModelConfig& config);

}  // namespace foredraft
