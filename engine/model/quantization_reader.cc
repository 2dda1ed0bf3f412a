#include "engine/model/quantization_reader.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "config/json_text.h"
#include "engine/model/packed_schemes.h"

namespace foredraft {
namespace {

// Refuses a field that is not empty: quantised inputs or outputs, a sparse layout, a rotation.
void RefuseUnlessEmpty(JsonFields& fields, const char* field) {
  const nlohmann::json* value = fields.Find(field);
  if (value != nullptr && !value->empty()) fields.Refuse(field, ShowJson(*value), "null");
}

void AllowOnlyBool(JsonFields& fields, const char* field, bool allowed) {
  if (fields.OptionalBool(field, allowed) == allowed) return;
  fields.Refuse(field, allowed ? "false" : "true", allowed ? "true" : "false");
}

// Refuses weights.actorder "group", the only value that permutes columns.
void CheckColumnOrder(JsonFields& fields) {
  const nlohmann::json* order = fields.Find("actorder");
  if (order == nullptr || *order == false || *order == "static" || *order == "weight") return;
  fields.Refuse("actorder", ShowJson(*order), "null, static, weight");
}

template <class Rows, class Text>
std::string List(const Rows& rows, const Text& text) {
  return absl::StrJoin(rows, ", ",
                       [&](std::string* out, const auto& row) { absl::StrAppend(out, text(row)); });
}

int ReadWeights(const nlohmann::json& weights, const PackedScheme& scheme, const std::string& path,
                JsonFields& parent) {
  JsonFields fields(weights, parent.file(), path);
  fields.RequiredInt("num_bits", CodeBits(scheme), CodeBits(scheme));
  if (fields.Find("type") == nullptr) fields.Refuse("type", "missing", scheme.type);
  fields.AllowOnly("type", scheme.type);
  if (fields.Find("strategy") == nullptr) fields.Refuse("strategy", "missing", scheme.strategy);
  fields.AllowOnly("strategy", scheme.strategy);
  AllowOnlyBool(fields, "symmetric", true);
  AllowOnlyBool(fields, "dynamic", false);
  CheckColumnOrder(fields);
  const int group = fields.RequiredInt("group_size", 1, INT32_MAX);
  if (std::ranges::count(scheme.groups, group) == 0) {
    fields.Refuse("group_size", absl::StrCat(group), absl::StrJoin(scheme.groups, ", "));
  }
  parent.Keep(fields.status());
  return group;
}

// Reads a config group: a scheme for the modules that its targets name.
int ReadGroup(const nlohmann::json& group, const PackedScheme& scheme, const std::string& path,
              JsonFields& parent) {
  JsonFields fields(group, parent.file(), path);
  // NVFP4's input_activations say how GPUs with FP4 products round inputs; here moe.inputs decides that.
  if (!scheme.format.tensor_scale) RefuseUnlessEmpty(fields, "input_activations");
  RefuseUnlessEmpty(fields, "output_activations");
  fields.AllowOnly("format", scheme.name);
  const nlohmann::json* weights = fields.Find("weights");
  int size = 0;
  if (weights == nullptr || !weights->is_object()) {
    fields.Refuse("weights", weights == nullptr ? "missing" : ShowJson(*weights), "an object");
  } else {
    size = ReadWeights(*weights, scheme, path + "weights.", fields);
  }
  parent.Keep(fields.status());
  return size;
}

// Reads quant_method compressed-tensors.
WeightFormat ReadCompressedTensors(JsonFields& fields) {
  const nlohmann::json* format = fields.Find("format");
  const auto* const scheme = std::ranges::find_if(
      kPackedSchemes, [&](const PackedScheme& row) { return format != nullptr && *format == row.name; });
  if (scheme == std::end(kPackedSchemes)) {
    fields.Refuse("format", format == nullptr ? "missing" : ShowJson(*format),
                  List(kPackedSchemes, [](const PackedScheme& row) { return row.name; }));
    return kBf16Format;
  }
  fields.AllowOnly("quantization_status", "compressed");
  // kv_cache_scheme is meant for other servers; here kv_cache_config.dtype alone decides.
  if (!scheme->format.tensor_scale) RefuseUnlessEmpty(fields, "kv_cache_scheme");
  for (const char* const field : {"sparsity_config", "transform_config"}) RefuseUnlessEmpty(fields, field);
  int size_of_all = 0;
  const nlohmann::json* groups = fields.Find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    fields.Refuse("config_groups", groups == nullptr ? "missing" : ShowJson(*groups), "an object of groups");
  } else if (fields.status().ok()) {
    for (const auto& [name, group] : groups->items()) {
      const std::string path = absl::StrCat(fields.path(), "config_groups.", name, ".");
      if (!group.is_object()) {
        fields.Refuse(("config_groups." + name).c_str(), ShowJson(group), "an object");
        continue;
      }
      const int size = ReadGroup(group, *scheme, path, fields);
      if (size_of_all == 0) size_of_all = size;
      if (size == size_of_all) continue;
      fields.Refuse(("config_groups." + name).c_str(), absl::StrFormat("group_size %d", size),
                    absl::StrFormat("one size for all, %d", size_of_all));
    }
  }
  WeightFormat read = scheme->format;
  read.columns = size_of_all;
  return read;
}

// Reads modelopt's quant_algo and group_size. MIXED_PRECISION: the tensors show their own formats. Fields
// about the cache and about excluded modules are not read.
WeightFormat ReadModelopt(JsonFields& fields) {
  constexpr const char* kAllowed[] = {"NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"};
  const nlohmann::json* algorithm = fields.Find("quant_algo");
  if (algorithm == nullptr || std::ranges::none_of(kAllowed, [&](auto name) { return *algorithm == name; })) {
    fields.Refuse("quant_algo", algorithm == nullptr ? "missing" : ShowJson(*algorithm),
                  absl::StrJoin(kAllowed, ", "));
  }
  const int group = kNvfp4Format.columns;
  fields.OptionalInt("group_size", group, group, group);
  const nlohmann::json* groups = fields.Find("config_groups");
  if (groups == nullptr || !groups->is_object()) return kNvfp4Format;
  for (const auto& [name, scheme] : groups->items()) {
    if (!scheme.is_object() || !scheme.contains("weights") || !scheme["weights"].is_object()) continue;
    JsonFields weights(scheme["weights"], fields.file(),
                       absl::StrCat(fields.path(), "config_groups.", name, ".weights."));
    if (weights.OptionalInt("num_bits", 4, 1, 64) == 4) {
      weights.OptionalInt("group_size", group, group, group);
    }
    fields.Keep(weights.status());
  }
  return kNvfp4Format;
}

// Reads hf_quant_config.json next to config.json, the only place where modelopt's older checkpoints have
// these fields. Null where there is none.
nlohmann::json ReadQuantFile(JsonFields& model, std::string& path) {
  constexpr int64_t kMaxBytes = int64_t{16} << 20;
  const size_t name = model.file().rfind('/');
  if (name == std::string::npos) return nullptr;
  path = model.file().substr(0, name + 1) + "hf_quant_config.json";
  const absl::StatusOr<std::string> text = ReadFileText(path, kMaxBytes);
  if (absl::IsNotFound(text.status())) return nullptr;
  if (!text.ok()) {
    model.Keep(text.status());
    return nullptr;
  }
  absl::StatusOr<nlohmann::json> file = ParseJson(*text, path);
  if (!file.ok()) {
    model.Keep(file.status());
    return nullptr;
  }
  return *std::move(file);
}

WeightFormat ReadModeloptFile(JsonFields& model) {
  std::string path;
  const nlohmann::json file = ReadQuantFile(model, path);
  if (file.is_null()) return kBf16Format;
  JsonFields fields(file, path, "");
  const nlohmann::json* quantization = file.is_object() ? fields.Find("quantization") : nullptr;
  if (quantization == nullptr || !quantization->is_object()) {
    fields.Refuse("quantization", quantization == nullptr ? "missing" : ShowJson(*quantization), "an object");
    model.Keep(fields.status());
    return kBf16Format;
  }
  JsonFields inner(*quantization, path, "quantization.");
  const WeightFormat format = ReadModelopt(inner);
  model.Keep(inner.status());
  return format;
}

// Reads quant_method fp8. scale_fmt is ignored: it says how DeepSeek's own kernels quantise activations,
// which stay BF16 here.
WeightFormat ReadFp8(JsonFields& fields) {
  fields.AllowOnly("fmt", "e4m3");
  fields.AllowOnly("activation_scheme", "dynamic");
  fields.AllowOnly("moe_quant_algo", "NVFP4");  // of DeepSeek-V4's experts
  const nlohmann::json* block = fields.Find("weight_block_size");
  if (block == nullptr || *block != nlohmann::json::array({kFp8Format.rows, kFp8Format.columns})) {
    fields.Refuse("weight_block_size", block == nullptr ? "missing" : ShowJson(*block),
                  absl::StrFormat("[%d,%d]", kFp8Format.rows, kFp8Format.columns));
  }
  return kFp8Format;
}

}  // namespace

WeightFormat ReadQuantization(JsonFields& model) {
  const nlohmann::json* quantization = model.Find("quantization_config");
  if (quantization == nullptr) return ReadModeloptFile(model);
  if (!quantization->is_object()) {
    model.Refuse("quantization_config", ShowJson(*quantization), "an object");
    return kBf16Format;
  }
  const struct {
    const char* method;
    WeightFormat (*read)(JsonFields& fields);
  } methods[] = {{"fp8", ReadFp8}, {"compressed-tensors", ReadCompressedTensors}, {"modelopt", ReadModelopt}};
  JsonFields fields(*quantization, model.file(), absl::StrCat(model.path(), "quantization_config."));
  const nlohmann::json* method = fields.Find("quant_method");
  const auto* const row = std::ranges::find_if(
      methods, [&](const auto& row) { return method != nullptr && *method == row.method; });
  WeightFormat format;
  if (row == std::end(methods)) {
    fields.Refuse("quant_method", method == nullptr ? "missing" : ShowJson(*method),
                  List(methods, [](const auto& row) { return row.method; }));
  } else {
    format = row->read(fields);
  }
  model.Keep(fields.status());
  return format;
}

}  // namespace foredraft
