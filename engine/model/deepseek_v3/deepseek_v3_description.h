#pragma once

// DeepSeek-V3 under Hugging Face's tensor names, and the families that keep them: where
// ModelConfig::HasIndexer says so, a layer also has the tensors of an indexer (docs/deepseek-v3.md sections
// 6, 8 and 9). In a multimodal checkpoint the names begin with ModelConfig::tensor_prefix, and the tensors of
// the vision part are not read.

#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/model_description.h"
#include "engine/model/deepseek_v3/deepseek_v3_weights.h"
#include "engine/model/model_config.h"

namespace foredraft {

// MTP module i is layer num_hidden_layers + i.
ModelDescription DescribeDeepSeekV3(const ModelConfig& config, int mtp_module_count, const ModelShard& shard);

// ModelKind::rename: older NVFP4 files of multimodal checkpoints omit "model." after the prefix.
std::vector<NamedPart> NameDeepSeekV3(const TensorEntry& stored, const ModelConfig& config);

// Describes one decoder layer, whose tensors' names begin with `prefix` ("model.layers.3."), and sets
// layer.is_moe. For variants that keep DeepSeek-V3's layer.
void DescribeDecoderLayer(const ModelConfig& config, const std::string& prefix, bool is_moe,
                          V3LayerWeights& layer, ModelDescription& description);

}  // namespace foredraft
