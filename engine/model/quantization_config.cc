#include "engine/model/quantization_config.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <vector>

#include "engine/checkpoint/formats/stored_format.h"
#include "engine/model/model_kind.h"
#include "engine/model/packed_schemes.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

// Names of the modules whose matrix is not quantised, routers included: other programs may treat a router as
// a linear layer.
std::vector<std::string> UnquantisedModules(const ModelDescription& description) {
  constexpr std::string_view kEnding = ".weight";
  const FormatChoice choice(description);
  std::vector<std::string> names;
  for (const TensorSpec& spec : description.tensors) {
    if (choice.Quantises(spec) || spec.shape.size() != 2 || spec.kind == TensorKind::kEmbedding) continue;
    if (!spec.name.ends_with(kEnding) || spec.name.ends_with("embed_tokens.weight")) continue;
    names.push_back(spec.name.substr(0, spec.name.size() - kEnding.size()));
  }
  return names;
}

// The quantization_config; null if projections are not quantised.
Json QuantizationConfig(const ModelDescription& description) {
  const WeightFormat& format = description.projections;
  if (IsF8(format)) {
    return {{"quant_method", "fp8"},
            {"fmt", "e4m3"},
            {"activation_scheme", "dynamic"},
            {"weight_block_size", {format.rows, format.columns}},
            {"modules_to_not_convert", UnquantisedModules(description)}};
  }
  if (format == kNvfp4Format) {
    const Json weights = {
        {"num_bits", 4}, {"type", "float"}, {"group_size", format.columns}, {"dynamic", false}};
    const Json group = {{"targets", {"Linear"}}, {"weights", weights}, {"input_activations", nullptr}};
    return {{"quant_method", "modelopt"},
            {"quant_algo", "W4A16_NVFP4"},
            {"config_groups", {{"group_0", group}}},
            {"ignore", UnquantisedModules(description)}};
  }
  const auto* const scheme = std::ranges::find_if(
      kPackedSchemes, [&](const PackedScheme& row) { return RowOf(row.format) == RowOf(format); });
  if (scheme == std::end(kPackedSchemes)) return nullptr;
  Json weights = {{"num_bits", CodeBits(*scheme)}, {"type", scheme->type},         {"symmetric", true},
                  {"group_size", format.columns},  {"strategy", scheme->strategy}, {"dynamic", false}};
  if (scheme->scale_dtype != nullptr) weights["scale_dtype"] = scheme->scale_dtype;
  const Json group = {{"targets", {"Linear"}},
                      {"weights", weights},
                      {"input_activations", nullptr},
                      {"output_activations", nullptr},
                      {"format", scheme->name}};
  return {{"quant_method", "compressed-tensors"},      {"format", scheme->name},
          {"quantization_status", "compressed"},       {"config_groups", {{"group_0", group}}},
          {"ignore", UnquantisedModules(description)}, {"kv_cache_scheme", nullptr}};
}

}  // namespace

ModelConfig WithProjections(ModelConfig config, const WeightFormat& format) {
  config.projections = format;
  config.experts.reset();
  if (const auto choose = config.kind->choose_formats; choose != nullptr) choose(config);
  return config;
}

void SetQuantization(const ModelConfig& config, const ModelDescription& description, Json& config_json) {
  const std::string text_field(TextFieldOf(config));
  config_json.erase("quantization_config");  // moves the members after it
  Json& text = text_field.empty() ? config_json : config_json[text_field];
  text.erase("quantization_config");
  if (const Json quantization = QuantizationConfig(description); !quantization.is_null()) {
    text["quantization_config"] = quantization;
  }
  if (const auto write = config.kind->write_formats; write != nullptr) write(config, config_json);
}

}  // namespace foredraft
