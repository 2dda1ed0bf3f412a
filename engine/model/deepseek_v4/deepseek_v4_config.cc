#include "engine/model/deepseek_v4/deepseek_v4_config.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"
#include "config/json_text.h"
#include "engine/model/deepseek_v4/deepseek_v4_shape.h"
#include "engine/model/deepseek_v4/dspark_config.h"
#include "engine/model/rope_fields.h"
#include "kernels/weight_format.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr int64_t kMaxRatio = 4096;
constexpr int64_t kMaxStreams = 16;

struct KindName {
  AttentionKind kind;
  int shipped_ratio;       // in compress_ratios
  const char* layer_type;  // in layer_types
};
constexpr KindName kKindNames[] = {{AttentionKind::kWindow, 0, "sliding_attention"},
                                   {AttentionKind::kCompressedSparse, 4, "compressed_sparse_attention"},
                                   {AttentionKind::kHeavilyCompressed, 128, "heavily_compressed_attention"}};

void ReadSizes(JsonFields& fields, ModelConfig& config, DeepseekV4Shape& shape) {
  config.vocab_size = fields.RequiredInt("vocab_size", 1, 1 << 22);
  config.hidden_size = fields.RequiredInt("hidden_size", 1, kMaxWidth);
  config.num_hidden_layers = fields.RequiredInt("num_hidden_layers", 1, kMaxLayers);
  config.num_nextn_predict_layers = fields.OptionalInt("num_nextn_predict_layers", 1, 0, kMaxModules);
  config.max_position_embeddings = fields.RequiredInt("max_position_embeddings", 1, 1 << 30);
  config.rms_norm_eps = fields.OptionalDouble("rms_norm_eps", 1e-6, 1e-12, 1);
  if (fields.OptionalBool("tie_word_embeddings", false))
    fields.Refuse("tie_word_embeddings", "true", "false");
  if (fields.OptionalBool("attention_bias", false)) fields.Refuse("attention_bias", "true", "false");
  fields.AllowOnly("hidden_act", "silu");
  config.hc_mult = fields.OptionalInt("hc_mult", 4, 1, kMaxStreams);
  shape.hc_sinkhorn_iters = fields.OptionalInt("hc_sinkhorn_iters", 20, 1, 1000);
  shape.hc_eps = fields.OptionalDouble("hc_eps", 1e-6, 0, 1);
  if (int64_t{config.hc_mult} * config.hidden_size > kMaxFused) {
    fields.Refuse("hc_mult", absl::StrFormat("%d", config.hc_mult),
                  absl::StrFormat("at most %d features over all streams", kMaxFused));
  }
}

// qk_rope_head_dim, or partial_rotary_factor of head_dim.
int ReadRopeDim(JsonFields& fields, const DeepseekV4Shape& shape) {
  int64_t fallback = 64;
  if (fields.Find("partial_rotary_factor") != nullptr) {
    fallback = std::llround(fields.OptionalDouble("partial_rotary_factor", 0.125, 0, 1) * shape.head_dim);
  }
  const int dim = fields.Find("qk_rope_head_dim") == nullptr
                      ? static_cast<int>(fallback)
                      : fields.RequiredInt("qk_rope_head_dim", 2, kMaxWidth);
  if (dim < 2 || dim % 2 != 0 || dim > shape.head_dim) {
    fields.Refuse(fields.Find("qk_rope_head_dim") != nullptr ? "qk_rope_head_dim" : "partial_rotary_factor",
                  absl::StrFormat("%d rotated values", dim),
                  absl::StrFormat("even numbers 2..%d, head_dim", shape.head_dim));
  }
  return dim;
}

void ReadAttention(JsonFields& fields, ModelConfig& config, DeepseekV4Shape& shape) {
  config.num_attention_heads = fields.RequiredInt("num_attention_heads", 1, kMaxHeads);
  fields.OptionalInt("num_key_value_heads", 1, 1, 1);
  shape.head_dim = fields.OptionalInt("head_dim", 512, 2, kMaxWidth);
  config.qk_rope_head_dim = ReadRopeDim(fields, shape);
  config.q_lora_rank = fields.OptionalInt("q_lora_rank", 1024, 1, kMaxWidth);
  shape.o_lora_rank = fields.OptionalInt("o_lora_rank", 1024, 1, kMaxWidth);
  shape.o_groups = fields.OptionalInt("o_groups", 8, 1, kMaxHeads);
  shape.sliding_window = fields.OptionalInt("sliding_window", 128, 1, 1 << 20);
  config.index_n_heads = fields.OptionalInt("index_n_heads", 64, 1, kMaxHeads);
  config.index_head_dim =
      fields.OptionalInt("index_head_dim", 128, config.qk_rope_head_dim, kMaxWidth / kMaxHeads);
  config.index_topk = fields.OptionalInt("index_topk", 512, 1, 1 << 30);
  if (config.num_attention_heads % shape.o_groups != 0) {
    fields.Refuse("o_groups", absl::StrFormat("%d", shape.o_groups),
                  absl::StrFormat("divisors of num_attention_heads, %d", config.num_attention_heads));
  }
  const int64_t widest = std::max(int64_t{config.num_attention_heads} * shape.head_dim,
                                  int64_t{shape.o_groups} * shape.o_lora_rank);
  if (widest > kMaxFused) {
    fields.Refuse("num_attention_heads", absl::StrFormat("%d", config.num_attention_heads),
                  absl::StrFormat("at most %d features over all heads", kMaxFused));
  }
}

// Reads the layers' kinds from DeepSeek's compress_ratios: a ratio per layer, then a 0 per MTP module or
// DSpark stage.
void ReadRatios(JsonFields& fields, const json& ratios, ModelConfig& config, DeepseekV4Shape& shape) {
  const size_t layers = config.num_hidden_layers;
  const size_t all = layers + config.num_nextn_predict_layers;
  const auto refuse = [&] {
    fields.Refuse("compress_ratios", ShowJson(ratios),
                  config.dspark
                      ? absl::StrFormat("0, 4 or 128 for %d layers, then 0 for every DSpark stage", layers)
                      : absl::StrFormat("0, 4 or 128 for %d layers, then 0 for the MTP modules, %d in all",
                                        layers, all));
  };
  if (!ratios.is_array() || ratios.size() < layers) return refuse();
  if (config.dspark ? ratios.size() > layers + kMaxModules
                    : ratios.size() != layers && ratios.size() != all) {
    return refuse();
  }
  for (size_t i = 0; i < ratios.size(); ++i) {
    const auto* name = std::find_if(std::begin(kKindNames), std::end(kKindNames),
                                    [&](const KindName& row) { return ratios[i] == row.shipped_ratio; });
    if (name == std::end(kKindNames) || (i >= layers && name->shipped_ratio != 0)) return refuse();
    if (i < layers) shape.layers.push_back(name->kind);
  }
  if (config.dspark) config.dspark->stage_count = static_cast<int>(ratios.size() - layers);
}

// Reads the layers' kinds from transformers' layer_types and compress_rates.
void ReadLayerTypes(JsonFields& fields, const json& types, const ModelConfig& config,
                    DeepseekV4Shape& shape) {
  const auto refuse = [&] {
    fields.Refuse(
        "layer_types", ShowJson(types),
        absl::StrFormat("%s, %s, %s for %d layers", kKindNames[0].layer_type, kKindNames[1].layer_type,
                        kKindNames[2].layer_type, config.num_hidden_layers));
  };
  if (!types.is_array() || types.size() != static_cast<size_t>(config.num_hidden_layers)) return refuse();
  for (const json& type : types) {
    const auto* name = std::find_if(std::begin(kKindNames), std::end(kKindNames),
                                    [&](const KindName& row) { return type == row.layer_type; });
    if (name == std::end(kKindNames)) return refuse();
    shape.layers.push_back(name->kind);
  }
  // Early versions of transformers saved the ratios as two fields.
  shape.sparse_ratio = fields.OptionalInt("compress_rate_csa", 4, 1, kMaxRatio);
  shape.heavy_ratio = fields.OptionalInt("compress_rate_hca", 128, 1, kMaxRatio);
  const json* rates = fields.Find("compress_rates");
  if (rates == nullptr) return;
  if (!rates->is_object()) return fields.Refuse("compress_rates", ShowJson(*rates), "an object");
  JsonFields rate(*rates, fields.file(), "compress_rates.");
  shape.sparse_ratio = rate.OptionalInt("compressed_sparse_attention", shape.sparse_ratio, 1, kMaxRatio);
  shape.heavy_ratio = rate.OptionalInt("heavily_compressed_attention", shape.heavy_ratio, 1, kMaxRatio);
  fields.Keep(rate.status());
}

void ReadLayers(JsonFields& fields, ModelConfig& config, DeepseekV4Shape& shape) {
  if (const json* types = fields.Find("layer_types")) {
    ReadLayerTypes(fields, *types, config, shape);
  } else if (const json* ratios = fields.Find("compress_ratios")) {
    ReadRatios(fields, *ratios, config, shape);
  } else {
    fields.Refuse("compress_ratios", "missing", "0, 4 or 128 per layer, or layer_types");
  }
  shape.hash_layers.assign(config.num_hidden_layers, 0);
  const json* types = fields.Find("mlp_layer_types");
  if (types == nullptr) {
    const int fallback = std::min(3, config.num_hidden_layers);
    const int count = fields.OptionalInt("num_hash_layers", fallback, 0, config.num_hidden_layers);
    std::fill_n(shape.hash_layers.begin(), std::clamp(count, 0, config.num_hidden_layers), 1);
    return;
  }
  const bool fits = types->is_array() && types->size() == shape.hash_layers.size();
  for (size_t i = 0; fits && i < types->size(); ++i) shape.hash_layers[i] = (*types)[i] == "hash_moe" ? 1 : 0;
  if (!fits || !std::all_of(types->begin(), types->end(),
                            [](const json& type) { return type == "hash_moe" || type == "moe"; })) {
    fields.Refuse("mlp_layer_types", ShowJson(*types),
                  absl::StrFormat("hash_moe, moe for %d layers", config.num_hidden_layers));
  }
}

// n_group and topk_group, which DeepSeek ships, have no meaning: all experts are one group.
void ReadExperts(JsonFields& fields, ModelConfig& config, DeepseekV4Shape& shape) {
  config.n_routed_experts = fields.OptionalInt("n_routed_experts", 256, 1, kMaxExperts);
  config.num_experts_per_tok = fields.OptionalInt("num_experts_per_tok", 6, 1, config.n_routed_experts);
  config.n_shared_experts = fields.OptionalInt("n_shared_experts", 1, 1, 1);
  config.moe_intermediate_size = fields.RequiredInt("moe_intermediate_size", 1, kMaxWidth);
  config.intermediate_size = config.moe_intermediate_size;
  fields.AllowOnly("scoring_func", "sqrtsoftplus");
  fields.AllowOnly("topk_method", "noaux_tc");
  if (!fields.OptionalBool("norm_topk_prob", true)) fields.Refuse("norm_topk_prob", "false", "true");
  config.routed_scaling_factor = fields.OptionalDouble("routed_scaling_factor", 1.5, 0, 1e6);
  shape.swiglu_limit = fields.OptionalDouble("swiglu_limit", 10, 1e-6, 1e6);
  const json* quantization = fields.Find("quantization_config");
  if (quantization == nullptr || !quantization->is_object()) return;
  const json* dtype = fields.Find("expert_dtype");
  if (dtype == nullptr && quantization->contains("expert_dtype")) dtype = &quantization->at("expert_dtype");
  if (dtype != nullptr && *dtype != "fp4" && *dtype != "fp8") {
    fields.Refuse("expert_dtype", ShowJson(*dtype), "fp4, fp8");
  }
  if (!IsF8(config.projections)) return;
  config.projections = kFp8E8m0Format;
  if (dtype != nullptr && *dtype != "fp4") return;
  const bool nvfp4 =
      quantization->contains("moe_quant_algo") && !quantization->at("moe_quant_algo").is_null();
  config.experts = nvfp4 ? kNvfp4Format : kMxfp4Format;
}

// Reads YaRN; factors on cos, sin and the scores are not allowed.
std::optional<RopeScaling> ReadYarn(JsonFields& fields) {
  const char* type_field = fields.Find("rope_type") != nullptr ? "rope_type" : "type";
  const json* type = fields.Find(type_field);
  if (type == nullptr || *type == "default") return std::nullopt;
  if (*type != "yarn") fields.Refuse(type_field, ShowJson(*type), "yarn, default");
  for (const char* name : {"mscale", "mscale_all_dim"}) {
    if (const json* value = fields.Find(name)) fields.Refuse(name, ShowJson(*value), "absent");
  }
  fields.OptionalDouble("attention_factor", 1, 1, 1);
  if (!fields.OptionalBool("truncate", true)) fields.Refuse("truncate", "false", "true");
  return RopeScaling{
      .factor = fields.RequiredDouble("factor", 1, 1e6),
      .original_max_position_embeddings = fields.RequiredInt("original_max_position_embeddings", 1, 1 << 30),
      .beta_fast = fields.OptionalDouble("beta_fast", 32, 1e-3, 1e6),
      .beta_slow = fields.OptionalDouble("beta_slow", 1, 1e-3, 1e6)};
}

// Reads the one object that scales the layers with a compressor. A base inside it must equal one of the two
// bases next to it.
std::optional<RopeScaling> ReadFlatRope(const char* name, JsonFields& fields, const ModelConfig& config,
                                        const DeepseekV4Shape& shape) {
  const json& rope = *fields.Find(name);
  if (!rope.is_object()) {
    fields.Refuse(name, ShowJson(rope), "an object");
    return std::nullopt;
  }
  JsonFields yarn(rope, fields.file(), absl::StrFormat("%s.", name));
  const double theta = yarn.OptionalDouble("rope_theta", config.rope_theta, kLeastTheta, kMostTheta);
  if (theta != config.rope_theta && theta != shape.compress_rope_theta) {
    yarn.Refuse("rope_theta", absl::StrFormat("%.10g", theta),
                absl::StrFormat("%.10g, as rope_theta says beside it", config.rope_theta));
  }
  const std::optional<RopeScaling> scaling = ReadYarn(yarn);
  fields.Keep(yarn.status());
  return scaling;
}

// Reads two objects: one for the layers without a compressor, one for the layers with a compressor.
void ReadNestedRope(const json& parameters, JsonFields& fields, ModelConfig& config, DeepseekV4Shape& shape) {
  for (const char* name : {"main", "compress"}) {
    const json& part = parameters.at(name);
    const std::string path = absl::StrFormat("rope_parameters.%s", name);
    if (!part.is_object()) return fields.Refuse(path.c_str(), ShowJson(part), "an object");
    JsonFields rope(part, fields.file(), path + ".");
    const bool main = name == std::string_view("main");
    double& theta = main ? config.rope_theta : shape.compress_rope_theta;
    theta = ReadInnerTheta(rope, fields, main ? "rope_theta" : "compress_rope_theta", theta);
    const std::optional<RopeScaling> yarn = ReadYarn(rope);
    if (main && yarn) rope.Refuse("rope_type", "yarn", "default");
    if (!main) shape.compress_rope_scaling = yarn;
    fields.Keep(rope.status());
  }
}

void ReadRope(JsonFields& fields, ModelConfig& config, DeepseekV4Shape& shape) {
  config.rope_theta = fields.OptionalDouble("rope_theta", 10000, kLeastTheta, kMostTheta);
  shape.compress_rope_theta = fields.OptionalDouble("compress_rope_theta", 160000, kLeastTheta, kMostTheta);
  const bool has_scaling = fields.Find("rope_scaling") != nullptr;
  if (has_scaling) shape.compress_rope_scaling = ReadFlatRope("rope_scaling", fields, config, shape);
  const json* parameters = fields.Find("rope_parameters");
  if (parameters == nullptr) return;
  const std::optional<RopeScaling> older = shape.compress_rope_scaling;
  if (parameters->is_object() && parameters->contains("main") && parameters->contains("compress")) {
    ReadNestedRope(*parameters, fields, config, shape);
  } else {
    shape.compress_rope_scaling = ReadFlatRope("rope_parameters", fields, config, shape);
  }
  if (has_scaling && fields.status().ok()) RequireSameScaling(older, shape.compress_rope_scaling, fields);
}

}  // namespace

void ReadDeepseekV4(JsonFields& fields, ModelConfig& config) {
  DeepseekV4Shape& shape = config.own.emplace<DeepseekV4Shape>();
  config.runs_indexer = true;
  config.recycles_module = true;
  ReadSizes(fields, config, shape);
  config.dspark = ReadDSpark(fields, config);
  ReadAttention(fields, config, shape);
  if (!fields.status().ok()) return;  // the lists below are checked against these sizes
  ReadLayers(fields, config, shape);
  if (config.dspark) {  // the file's number of modules has no meaning
    config.num_nextn_predict_layers = config.dspark->stage_count;
    config.drafter = "DSpark";
  }
  ReadExperts(fields, config, shape);
  ReadRope(fields, config, shape);
}

void ChooseDeepseekV4Formats(ModelConfig& config) {
  const WeightFormat format = config.projections;
  if (!IsF8(format) && format.code != DType::kF4E2M1) return;
  config.projections = kFp8E8m0Format;
  if (Is4Bit(format)) config.experts = format == kNvfp4Format ? kNvfp4Format : kMxfp4Format;
}

void WriteDeepseekV4Formats(const ModelConfig& config, nlohmann::ordered_json& config_json) {
  config_json.erase("expert_dtype");
  if (!IsF8(config.projections)) return;
  config_json["expert_dtype"] = config.experts ? "fp4" : "fp8";
  config_json["quantization_config"]["scale_fmt"] = "ue8m0";
  if (config.experts == kNvfp4Format) config_json["quantization_config"]["moe_quant_algo"] = "NVFP4";
}

}  // namespace foredraft
