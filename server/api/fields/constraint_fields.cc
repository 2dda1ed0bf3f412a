#include "server/api/fields/constraint_fields.h"

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "config/json_text.h"
#include "server/text/json_slice.h"

namespace foredraft {
namespace {

using nlohmann::json;

struct NamedKind {
  const char* field;
  Constraint::Kind kind;
};
constexpr NamedKind kInStructuredOutputs[] = {
    {"json", Constraint::kJsonSchema},        {"regex", Constraint::kRegex},
    {"choice", Constraint::kChoice},          {"grammar", Constraint::kGbnf},
    {"json_object", Constraint::kJsonObject}, {"structural_tag", Constraint::kStructuralTag}};
constexpr NamedKind kAtTheTop[] = {{"guided_json", Constraint::kJsonSchema},
                                   {"guided_regex", Constraint::kRegex},
                                   {"guided_choice", Constraint::kChoice},
                                   {"guided_grammar", Constraint::kGbnf},
                                   {"guided_json_object", Constraint::kJsonObject},
                                   {"json_schema", Constraint::kJsonSchema},
                                   {"regex", Constraint::kRegex},
                                   {"ebnf", Constraint::kGbnf},
                                   {"grammar", Constraint::kGbnf}};

// The one constraint of a request; a second is refused.
class SingleConstraint {
 public:
  explicit SingleConstraint(FieldReader& fields) : fields_(fields) {}

  void Set(ClientConstraint constraint) {
    if (read_.has_value()) {
      fields_.Keep(absl::InvalidArgumentError(
          absl::StrCat(constraint.field, ": given with ", read_->field, ", allowed one of them")));
      return;
    }
    read_ = std::move(constraint);
  }
  ClientConstraint* get() { return read_.has_value() ? &*read_ : nullptr; }
  std::optional<ClientConstraint> Take() { return std::move(read_); }

 private:
  FieldReader& fields_;
  std::optional<ClientConstraint> read_;
};

// A schema or tag: a JSON object, or its text in a string.
std::string ReadSource(FieldReader& fields, const char* field, const json& value, std::string_view object) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() || value.is_boolean()) return std::string(MemberText(object, field));
  fields.Refuse(field, absl::StrCat(ShowJson(value), ", allowed an object or its JSON text"));
  return "";
}

// `object`: the text of the object that `fields` reads. `path` stands before the field's name in errors.
void ReadNamed(FieldReader& fields, const NamedKind& named, std::string_view object, const std::string& path,
               SingleConstraint& constraint) {
  const json* value = fields.Find(named.field);
  if (value == nullptr) return;
  ClientConstraint read{.field = path + named.field, .kind = named.kind};
  switch (named.kind) {
    case Constraint::kJsonObject:
      if (!fields.Bool(named.field, false)) return;
      break;
    case Constraint::kChoice:
      read.choices = fields.Strings(named.field);
      break;
    case Constraint::kJsonSchema:
    case Constraint::kStructuralTag:
      read.source = ReadSource(fields, named.field, *value, object);
      break;
    case Constraint::kRegex:
    case Constraint::kGbnf:
      read.source = fields.String(named.field).value_or("");
      break;
  }
  constraint.Set(std::move(read));
}

void ReadJsonSchema(FieldReader& format, std::string_view text, SingleConstraint& constraint) {
  const json* object = format.Find("json_schema");
  if (object == nullptr || !object->is_object()) {
    return format.Refuse("json_schema", object == nullptr
                                            ? "absent, required"
                                            : absl::StrCat(ShowJson(*object), ", allowed an object"));
  }
  const std::string path = "response_format.json_schema.";
  FieldReader fields(*object, path, format.context());
  if (fields.Find("schema") == nullptr) fields.Refuse("schema", "absent, required");
  ReadNamed(fields, {"schema", Constraint::kJsonSchema}, MemberText(text, "json_schema"), path, constraint);
  fields.End();
  format.Keep(fields.status());
}

void ReadResponseFormat(FieldReader& fields, std::string_view body, SingleConstraint& constraint) {
  const json* object = fields.Find("response_format");
  if (object == nullptr) return;
  if (!object->is_object()) {
    return fields.Refuse("response_format", absl::StrCat(ShowJson(*object), ", allowed an object"));
  }
  const std::string_view text = MemberText(body, "response_format");
  FieldReader format(*object, "response_format.", fields.context());
  const std::string type = format.String("type").value_or("");
  if (type == "structural_tag") {  // the object itself is one
    return constraint.Set(
        {.field = "response_format", .kind = Constraint::kStructuralTag, .source = std::string(text)});
  }
  if (type == "json_schema") {
    ReadJsonSchema(format, text, constraint);
  } else if (type == "json_object") {
    constraint.Set({.field = "response_format", .kind = Constraint::kJsonObject});
  } else if (type != "text") {
    format.Refuse("type",
                  absl::StrCat(ShowJson(type), ", allowed text, json_object, json_schema, structural_tag"));
  }
  format.End();
  fields.Keep(format.status());
}

// Anthropic's form: {"format": {"type": "json_schema", "schema": ...}, "effort": ...}. ReadThinking reads the
// effort.
void ReadOutputConfig(FieldReader& fields, std::string_view body, SingleConstraint& constraint) {
  const json* config = fields.Find("output_config");
  if (config == nullptr || !config->is_object()) return;
  FieldReader around(*config, "output_config.", fields.context());
  const json* format = around.Find("format");
  if (format == nullptr) return;
  if (!format->is_object()) {
    return fields.Refuse("output_config.format", absl::StrCat(ShowJson(*format), ", allowed an object"));
  }
  const std::string path = "output_config.format.";
  FieldReader read(*format, path, fields.context());
  const std::string type = read.String("type").value_or("");
  if (type != "json_schema") read.Refuse("type", absl::StrCat(ShowJson(type), ", allowed json_schema"));
  if (read.Find("schema") == nullptr) read.Refuse("schema", "absent, required");
  ReadNamed(read, {"schema", Constraint::kJsonSchema},
            MemberText(MemberText(body, "output_config"), "format"), path, constraint);
  read.End();
  fields.Keep(read.status());
}

// The Responses API's: {"format": {"type", "schema", ...}, "verbosity"}
void ReadTextFormat(FieldReader& fields, std::string_view body, SingleConstraint& constraint) {
  const json* text = fields.Find("text");
  if (text == nullptr) return;
  if (!text->is_object()) return fields.Refuse("text", absl::StrCat(ShowJson(*text), ", allowed an object"));
  FieldReader around(*text, "text.", fields.context());
  const json* format = around.Find("format");
  around.End();
  fields.Keep(around.status());
  if (format == nullptr) return;
  if (!format->is_object()) {
    return fields.Refuse("text.format", absl::StrCat(ShowJson(*format), ", allowed an object"));
  }
  const std::string path = "text.format.";
  FieldReader read(*format, path, fields.context());
  const std::string type = read.String("type").value_or("");
  if (type == "json_schema") {
    if (read.Find("schema") == nullptr) read.Refuse("schema", "absent, required");
    ReadNamed(read, {"schema", Constraint::kJsonSchema}, MemberText(MemberText(body, "text"), "format"), path,
              constraint);
  } else if (type == "json_object") {
    constraint.Set({.field = "text.format", .kind = Constraint::kJsonObject});
  } else if (type != "text") {
    read.Refuse("type", absl::StrCat(ShowJson(type), ", allowed text, json_object, json_schema"));
  }
  read.End();
  fields.Keep(read.status());
}

// vLLM's object of constraints.
void ReadStructuredOutputs(FieldReader& fields, std::string_view body, SingleConstraint& constraint) {
  const json* object = fields.Find("structured_outputs");
  if (object == nullptr) return;
  if (!object->is_object()) {
    return fields.Refuse("structured_outputs", absl::StrCat(ShowJson(*object), ", allowed an object"));
  }
  const std::string path = "structured_outputs.";
  FieldReader read(*object, path, fields.context());
  const std::string_view text = MemberText(body, "structured_outputs");
  SingleConstraint here(read);
  for (const NamedKind& named : kInStructuredOutputs) ReadNamed(read, named, text, path, here);
  const bool compact = read.Bool("disable_any_whitespace", false);
  read.End();
  fields.Keep(read.status());
  if (here.get() == nullptr) return;
  here.get()->compact = compact;
  constraint.Set(*here.Take());
}

}  // namespace

std::optional<ClientConstraint> ReadConstraint(FieldReader& fields, std::string_view body) {
  SingleConstraint constraint(fields);
  ReadResponseFormat(fields, body, constraint);
  if (fields.context().wire == NotedWire::kResponses) ReadTextFormat(fields, body, constraint);
  if (fields.context().wire == NotedWire::kMessages) ReadOutputConfig(fields, body, constraint);
  ReadStructuredOutputs(fields, body, constraint);
  for (const NamedKind& named : kAtTheTop) ReadNamed(fields, named, body, "", constraint);
  return constraint.Take();
}

bool IsShown(const ClientConstraint& constraint) {
  return constraint.field == "response_format.json_schema.schema" ||
         constraint.field == "output_config.format.schema" || constraint.field == "text.format.schema";
}

}  // namespace foredraft
