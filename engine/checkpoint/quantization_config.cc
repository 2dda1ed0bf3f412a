#include "engine/checkpoint/quantization_config.h"

#include <string>
#include <variant>
#include <vector>

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

// Names of the modules whose matrix stays as it is. A router counts: other programs may have it as a linear
// layer.
std::vector<std::string> UnquantisedModules(const ModelConfig& config, const ModelDescription& description) {
  constexpr std::string_view kEnding = ".weight";
  const absl::flat_hash_set<const TensorSpec*> packed = TensorsToPack(config, description);
  std::vector<std::string> names;
  for (const TensorSpec& spec : description.tensors) {
    const bool quantised = config.pack_quantized ? packed.contains(&spec) : spec.is_quantised();
    if (quantised || spec.shape.size() != 2 || spec.kind == TensorKind::kEmbedding) continue;
    if (!spec.name.ends_with(kEnding) || spec.name.ends_with("embed_tokens.weight")) continue;
    names.push_back(spec.name.substr(0, spec.name.size() - kEnding.size()));
  }
  return names;
}

// quantization_config; null for neither.
Json QuantizationConfig(const ModelConfig& config, const ModelDescription& description) {
  if (config.fp8_blocks) {
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {config.weight_block_n, config.weight_block_k}},
            {"modules_to_not_convert", UnquantisedModules(config, description)}};
  }
  if (!config.pack_quantized) return nullptr;
  const bool int4 = config.pack_quantized.codes == CodeFormat::kInt4;
  const char* const format = int4 ? "pack-quantized" : "mxfp4-pack-quantized";
  Json weights = {{"num_bits", 4},       {"type", int4 ? "int" : "float"},
                  {"symmetric", true},   {"group_size", config.pack_quantized.group},
                  {"strategy", "group"}, {"dynamic", false}};
  if (!int4) weights["scale_dtype"] = "torch.uint8";
  const Json group = {{"targets", {"Linear"}},
                      {"weights", weights},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr},
                      {"format", format}};
  return {{"quant_method", "compressed-tensors"},
          {"format", format},
          {"quantization_status", "compressed"},
          {"config_groups", {{"group_0", group}}},
          {"ignore", UnquantisedModules(config, description)},
          {"kv_cache_scheme", nullptr}};
}

}  // namespace

bool IsPackedByChoice(const ModelConfig& config, const WeightSpec& weight) {
  return config.pack_quantized && !weight.tensors.empty() && weight.is_quantised() &&
         !std::holds_alternative<KvBMember>(weight.member) &&
         !std::holds_alternative<RowGroupsMember>(weight.member) &&
         weight.columns() % config.pack_quantized.group == 0;
}

absl::flat_hash_set<const TensorSpec*> TensorsToPack(const ModelConfig& config,
                                                     const ModelDescription& description) {
  absl::flat_hash_set<const TensorSpec*> tensors;
  for (const WeightSpec& weight : description.weights) {
    if (IsPackedByChoice(config, weight)) tensors.insert(weight.tensors.begin(), weight.tensors.end());
  }
  return tensors;
}

ModelConfig WithProjections(ModelConfig config, DType dtype, int group) {
  const bool own_fp4 = config.v4 && dtype == DType::kF4E2M1;
  config.fp8_blocks = dtype == DType::kF8E4M3 || own_fp4;
  if (config.v4) config.v4->fp4_experts = own_fp4;
  config.pack_quantized = {};
  if (dtype == DType::kInt4) config.pack_quantized = {CodeFormat::kInt4, group};
  if (dtype == DType::kF4E2M1 && !own_fp4) config.pack_quantized = {CodeFormat::kFp4, group};
  return config;
}

void SetQuantization(const ModelConfig& config, const ModelDescription& description, Json& config_json) {
  config_json.erase("quantization_config");
  config_json.erase("expert_dtype");
  if (const Json quantization = QuantizationConfig(config, description); !quantization.is_null()) {
    config_json["quantization_config"] = quantization;
  }
  if (config.v4 && config.fp8_blocks) {
    config_json["expert_dtype"] = config.v4->fp4_experts ? "fp4" : "fp8";
    config_json["quantization_config"]["scale_fmt"] = "ue8m0";
  }
}

}  // namespace foredraft
