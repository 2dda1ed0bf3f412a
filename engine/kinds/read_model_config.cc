#include "engine/kinds/read_model_config.h"

#include <algorithm>
#include <span>
#include <string>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "engine/kinds/model_kinds.h"
#include "engine/model/json_fields.h"
#include "engine/model/quantization_reader.h"

namespace foredraft {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

// Drafters that are not MTP modules, with the parts of field names and architectures by which they are known.
struct OtherDrafter {
  const char* field_begins;
  const char* architecture_has;
  const char* name;
};
constexpr OtherDrafter kOtherDrafters[] = {{"dspark_", "DSpark", "DSpark"},
                                           {"dflash_", "DFlash", "DFlash"},
                                           {"eagle_", "Eagle", "EAGLE"},
                                           {"medusa_", "Medusa", "Medusa"},
                                           {"speculators_", "Speculator", "speculators"}};

void RefuseDrafter(JsonFields& fields, const std::string& field, const nlohmann::json& value,
                   const char* drafter) {
  fields.Refuse(ShowKey(field).c_str(), ShowJson(value),
                absl::StrFormat("MTP modules only: this checkpoint drafts with %s", drafter));
}

void RefuseDrafterArchitectures(JsonFields& fields) {
  const nlohmann::json* names = fields.Find("architectures");
  const std::string architectures = names == nullptr ? "" : names->dump();
  if (architectures.find("Eagle3") != std::string::npos) {
    fields.Refuse("architectures", ShowJson(*names),
                  "those of models: this is a draft head, for speculative_config.speculative_model, and "
                  "`foredraft info MODEL --head HEAD` shows it");
  }
  for (const OtherDrafter& drafter : kOtherDrafters) {
    if (architectures.find(drafter.architecture_has) != std::string::npos) {
      RefuseDrafter(fields, "architectures", *names, drafter.name);
    }
  }
}

// Refuses fields of drafters other than the kind's own.
void RefuseDrafterFields(JsonFields& fields, const nlohmann::json& object, const ModelKind* kind) {
  const auto own = kind == nullptr ? std::span<const char* const>() : kind->drafter_fields;
  for (const OtherDrafter& drafter : kOtherDrafters) {
    const auto of_drafter = [&](const std::string& field) { return field.starts_with(drafter.field_begins); };
    for (const auto& [field, value] : object.items()) {
      if (!of_drafter(field) || value.is_null()) continue;
      if (std::find(own.begin(), own.end(), field) != own.end()) continue;
      if (std::any_of(own.begin(), own.end(), of_drafter)) {
        fields.Refuse(ShowKey(field).c_str(), ShowJson(value), absl::StrJoin(own, ", "));
      } else {
        RefuseDrafter(fields, field, value, drafter.name);
      }
    }
  }
}

// Null after a refusal.
const ModelKind* ReadKind(JsonFields& fields, ModelConfig& config) {
  const nlohmann::json* names = fields.Find("architectures");
  const bool one = names != nullptr && names->is_array() && names->size() == 1 && (*names)[0].is_string();
  if (one) config.architecture = (*names)[0].get<std::string>();
  if (!one || !FindModelKind(config.architecture, "")) {
    fields.Refuse("architectures", names == nullptr ? "missing" : ShowJson(*names),
                  KnownArchitectures() + ": foredraft serves these alone, vLLM or SGLang serve others");
    return nullptr;
  }
  const nlohmann::json* type = fields.Find("model_type");
  const std::optional<NamedKind> found =
      FindModelKind(config.architecture, type == nullptr     ? ""
                                         : type->is_string() ? type->get_ref<const std::string&>()
                                                             : "not a string");
  if (!found) {
    fields.Refuse("model_type", ShowJson(*type), KnownModelTypes(config.architecture));
    return nullptr;
  }
  config.kind = found->kind;
  config.model_type = std::string(found->name.model_type);
  return found->kind;
}

// The object that has the text model's fields: `object`, or the one nested in it. Null after a refusal.
const nlohmann::json* FindText(JsonFields& fields, const nlohmann::json& object, const std::string& field) {
  if (field.empty()) return &object;
  const nlohmann::json* const text = fields.Find(field.c_str());
  if (text != nullptr && text->is_object()) return text;
  fields.Refuse(field.c_str(), text == nullptr ? "missing" : ShowJson(*text), "an object");
  return nullptr;
}

// The formats of the projections. If the text model is nested, quantization_config may be in the outer
// object, in the inner one, or equal in both.
void ReadProjections(JsonFields& outer, JsonFields& text, ModelConfig& config) {
  constexpr char kField[] = "quantization_config";
  const nlohmann::json* const own = text.Find(kField);
  const nlohmann::json* const of_outer = outer.Find(kField);
  if (own != nullptr && of_outer != nullptr && *own != *of_outer) {
    text.Refuse(kField, "says something else than config.json's own quantization_config",
                "the same in both, or one of them");
  }
  config.projections = ReadQuantization(own == nullptr && of_outer != nullptr ? outer : text);
}

// Reads ids that the outer object lacks from the nested text model.
void ReadTokenIds(JsonFields& outer, JsonFields& text, ModelConfig& config) {
  const auto having = [&](const char* field) -> JsonFields& { return outer.Has(field) ? outer : text; };
  const int64_t last_id = std::max(config.vocab_size - 1, 0);
  JsonFields& of_bos = having("bos_token_id");
  const std::vector<int> bos = of_bos.Ids("bos_token_id", last_id);
  if (bos.size() > 1) of_bos.Refuse("bos_token_id", "a list", "one id");
  if (bos.size() == 1) config.bos_token_id = bos[0];
  // A missing eos_token_id means 1 to transformers, so it is refused; a model that should never stop has
  // null.
  JsonFields& of_eos = having("eos_token_id");
  if (!of_eos.Has("eos_token_id")) {
    of_eos.Refuse("eos_token_id", "missing", absl::StrFormat("ids 0..%d, null for none", last_id));
  }
  config.eos_token_ids = of_eos.Ids("eos_token_id", last_id);
}

// transformers ties the head of a nested text model where the outer object says so.
void CheckTies(JsonFields& outer, const ModelConfig& config) {
  const bool ties = outer.OptionalBool("tie_word_embeddings", config.tie_word_embeddings);
  if (ties == config.tie_word_embeddings) return;
  outer.Refuse("tie_word_embeddings", ties ? "true" : "false",
               absl::StrFormat("%s, as the text model has it", ties ? "false" : "true"));
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(std::string_view json, const std::string& file) {
  ASSIGN_OR_RETURN(const nlohmann::json object, ParseJson(json, file));
  if (!object.is_object()) return absl::InvalidArgumentError(absl::StrFormat("%s: not a JSON object", file));
  JsonFields fields(object, file, "");
  ModelConfig config;
  RefuseDrafterArchitectures(fields);
  const ModelKind* kind = ReadKind(fields, config);
  RefuseDrafterFields(fields, object, kind);
  RETURN_IF_ERROR(fields.status());  // another kind's fields mean something else
  const std::string text_field(TextFieldOf(config));
  const nlohmann::json* const text_object = FindText(fields, object, text_field);
  RETURN_IF_ERROR(fields.status());
  JsonFields text(*text_object, file, text_field.empty() ? "" : text_field + ".");
  RefuseDrafterFields(text, *text_object, kind);
  ReadProjections(fields, text, config);
  RETURN_IF_ERROR(fields.status());
  kind->read(text, config);
  RETURN_IF_ERROR(text.status());
  ReadTokenIds(fields, text, config);
  if (!text_field.empty()) CheckTies(fields, config);
  RETURN_IF_ERROR(text.status());
  RETURN_IF_ERROR(fields.status());
  return config;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const std::string& config_json_path) {
  ASSIGN_OR_RETURN(const std::string text, ReadFileText(config_json_path, kMaxConfigBytes));
  return ParseModelConfig(text, config_json_path);
}

}  // namespace foredraft
