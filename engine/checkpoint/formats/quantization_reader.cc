#include "engine/checkpoint/formats/quantization_reader.h"

#include <algorithm>
#include <iterator>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "config/json_text.h"

namespace foredraft {
namespace {

constexpr char kPath[] = "quantization_config.";

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

int ReadWeights(const nlohmann::json& weights, bool int4, const std::string& path, JsonFields& parent) {
  JsonFields fields(weights, parent.file(), path);
  fields.RequiredInt("num_bits", 4, 4);
  if (fields.Find("type") == nullptr) fields.Refuse("type", "missing", int4 ? "int" : "float");
  fields.AllowOnly("type", int4 ? "int" : "float");
  if (fields.Find("strategy") == nullptr) fields.Refuse("strategy", "missing", "group");
  fields.AllowOnly("strategy", "group");
  AllowOnlyBool(fields, "symmetric", true);
  AllowOnlyBool(fields, "dynamic", false);
  CheckColumnOrder(fields);
  const int group = fields.RequiredInt("group_size", 1, INT32_MAX);
  const bool fits = int4 ? std::ranges::count(kInt4Groups, group) > 0 : group == kMxfp4Format.columns;
  if (!fits) {
    fields.Refuse("group_size", absl::StrCat(group), int4 ? "32, 64, 128" : "32");
  }
  parent.Keep(fields.status());
  return group;
}

// A config group: a scheme for the modules that its targets name.
int ReadGroup(const nlohmann::json& group, bool int4, const std::string& path, JsonFields& parent) {
  JsonFields fields(group, parent.file(), path);
  RefuseUnlessEmpty(fields, "input_activations");
  RefuseUnlessEmpty(fields, "output_activations");
  fields.AllowOnly("format", int4 ? "pack-quantized" : "mxfp4-pack-quantized");
  const nlohmann::json* weights = fields.Find("weights");
  int size = 0;
  if (weights == nullptr || !weights->is_object()) {
    fields.Refuse("weights", weights == nullptr ? "missing" : ShowJson(*weights), "an object");
  } else {
    size = ReadWeights(*weights, int4, path + "weights.", fields);
  }
  parent.Keep(fields.status());
  return size;
}

// quant_method compressed-tensors.
WeightFormat ReadCompressedTensors(JsonFields& fields) {
  const nlohmann::json* format = fields.Find("format");
  const bool int4 = format != nullptr && *format == "pack-quantized";
  if (!int4 && (format == nullptr || *format != "mxfp4-pack-quantized")) {
    fields.Refuse("format", format == nullptr ? "missing" : ShowJson(*format),
                  "pack-quantized, mxfp4-pack-quantized");
  }
  fields.AllowOnly("quantization_status", "compressed");
  for (const char* const field : {"kv_cache_scheme", "sparsity_config", "transform_config"}) {
    RefuseUnlessEmpty(fields, field);
  }
  int size_of_all = 0;
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
      const int size = ReadGroup(group, int4, path, fields);
      if (size_of_all == 0) size_of_all = size;
      if (size == size_of_all) continue;
      fields.Refuse(("config_groups." + name).c_str(), absl::StrFormat("group_size %d", size),
                    absl::StrFormat("one size for all, %d", size_of_all));
    }
  }
  return int4 ? Int4Format(size_of_all) : kMxfp4Format;
}

// quant_method fp8. scale_fmt is ignored: it says how DeepSeek's own kernels quantise activations, which stay
// BF16 here.
WeightFormat ReadFp8(JsonFields& fields) {
  fields.AllowOnly("fmt", "e4m3");
  fields.AllowOnly("activation_scheme", "dynamic");
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
  if (quantization == nullptr) return kBf16Format;
  if (!quantization->is_object()) {
    model.Refuse("quantization_config", ShowJson(*quantization), "an object");
    return kBf16Format;
  }
  const struct {
    const char* method;
    WeightFormat (*read)(JsonFields& fields);
  } methods[] = {{"fp8", ReadFp8}, {"compressed-tensors", ReadCompressedTensors}};
  JsonFields fields(*quantization, model.file(), kPath);
  const nlohmann::json* method = fields.Find("quant_method");
  const auto* const row = std::ranges::find_if(
      methods, [&](const auto& row) { return method != nullptr && *method == row.method; });
  WeightFormat format;
  if (row == std::end(methods)) {
    const auto name = [](std::string* out, const auto& row) { absl::StrAppend(out, row.method); };
    fields.Refuse("quant_method", method == nullptr ? "missing" : ShowJson(*method),
                  absl::StrJoin(methods, ", ", name));
  } else {
    format = row->read(fields);
  }
  model.Keep(fields.status());
  return format;
}

}  // namespace foredraft
