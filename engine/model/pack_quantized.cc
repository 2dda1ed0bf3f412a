#include "engine/model/pack_quantized.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

// Refuses a field that says anything: an input or output that is quantised too, a sparse layout, a rotation.
void RefuseUnlessEmpty(JsonFields& fields, const char* field) {
  const nlohmann::json* value = fields.Find(field);
  if (value != nullptr && !value->empty()) fields.Refuse(field, ShowJson(*value), "null");
}

void AllowOnlyBool(JsonFields& fields, const char* field, bool allowed) {
  if (fields.OptionalBool(field, allowed) == allowed) return;
  fields.Refuse(field, allowed ? "false" : "true", allowed ? "true" : "false");
}

// weights.actorder permutes columns only where it is "group".
void CheckColumnOrder(JsonFields& fields) {
  const nlohmann::json* order = fields.Find("actorder");
  if (order == nullptr || *order == false || *order == "static" || *order == "weight") return;
  fields.Refuse("actorder", ShowJson(*order), "null, static, weight");
}

int ReadWeights(const nlohmann::json& weights, CodeFormat codes, const std::string& path,
                JsonFields& parent) {
  JsonFields fields(weights, parent.file(), path);
  const bool int4 = codes == CodeFormat::kInt4;
  fields.RequiredInt("num_bits", 4, 4);
  if (fields.Find("type") == nullptr) fields.Refuse("type", "missing", int4 ? "int" : "float");
  fields.AllowOnly("type", int4 ? "int" : "float");
  if (fields.Find("strategy") == nullptr) fields.Refuse("strategy", "missing", "group");
  fields.AllowOnly("strategy", "group");
  AllowOnlyBool(fields, "symmetric", true);
  AllowOnlyBool(fields, "dynamic", false);
  CheckColumnOrder(fields);
  const int group = fields.RequiredInt("group_size", 1, INT32_MAX);
  if (int4 ? group != 32 && group != 64 && group != 128 : group != 32) {
    fields.Refuse("group_size", absl::StrCat(group), int4 ? "32, 64, 128" : "32");
  }
  parent.Keep(fields.status());
  return group;
}

// A config group: a scheme for the modules that its targets name.
int ReadGroup(const nlohmann::json& group, CodeFormat codes, const std::string& path, JsonFields& parent) {
  JsonFields fields(group, parent.file(), path);
  RefuseUnlessEmpty(fields, "input_activations");
  RefuseUnlessEmpty(fields, "output_activations");
  fields.AllowOnly("format", codes == CodeFormat::kInt4 ? "pack-quantized" : "mxfp4-pack-quantized");
  const nlohmann::json* weights = fields.Find("weights");
  int size = 0;
  if (weights == nullptr || !weights->is_object()) {
    fields.Refuse("weights", weights == nullptr ? "missing" : ShowJson(*weights), "an object");
  } else {
    size = ReadWeights(*weights, codes, path + "weights.", fields);
  }
  parent.Keep(fields.status());
  return size;
}

}  // namespace

PackQuantized ReadPackQuantized(const nlohmann::json& quantization, JsonFields& parent) {
  constexpr char kPath[] = "quantization_config.";
  JsonFields fields(quantization, parent.file(), kPath);
  PackQuantized result;
  const nlohmann::json* format = fields.Find("format");
  if (format != nullptr && *format == "pack-quantized") {
    result.codes = CodeFormat::kInt4;
  } else if (format != nullptr && *format == "mxfp4-pack-quantized") {
    result.codes = CodeFormat::kFp4;
  } else {
    fields.Refuse("format", format == nullptr ? "missing" : ShowJson(*format),
                  "pack-quantized, mxfp4-pack-quantized");
  }
  fields.AllowOnly("quantization_status", "compressed");
  for (const char* const field : {"kv_cache_scheme", "sparsity_config", "transform_config"}) {
    RefuseUnlessEmpty(fields, field);
  }
  const nlohmann::json* groups = fields.Find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    fields.Refuse("config_groups", groups == nullptr ? "missing" : ShowJson(*groups), "an object of groups");
  } else if (fields.status().ok()) {
    for (const auto& [name, group] : groups->items()) {
      const std::string path = absl::StrCat(kPath, "config_groups.", name, ".");
      if (!group.is_object()) {
        fields.Refuse(("config_groups." + name).c_str(), ShowJson(group), "an object");
        continue;
      }
      const int size = ReadGroup(group, result.codes, path, fields);
      if (result.group == 0) result.group = size;
      if (size == result.group) continue;
      fields.Refuse(("config_groups." + name).c_str(), absl::StrFormat("group_size %d", size),
                    absl::StrFormat("one size for all, %d", result.group));
    }
  }
  parent.Keep(fields.status());
  return result;
}

}  // namespace foredraft
