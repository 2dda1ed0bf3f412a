#include "server/text/families/typescript_tools.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "config/json_text.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

using Json = nlohmann::json;  // objects are sorted by key

constexpr char kIndent[] = "  ";

// Deep nesting indents every line. A declaration is not written if it would be larger than kMostGrowth times
// its tool plus kFreeBytes, as no real one is.
constexpr size_t kMostGrowth = 4, kFreeBytes = size_t{64} << 10;

// A number as Python writes it: the shortest digits that give it back, with an exponent below 1e-4 and from
// 1e16 on.
std::string PythonFloat(double value) {
  char buffer[64];
  const std::string text(
      buffer, std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific).ptr);
  const int exponent = std::atoi(text.c_str() + text.find('e') + 1);
  if (exponent < -4 || exponent >= 16) return text;
  const std::string fixed(
      buffer, std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::fixed).ptr);
  return fixed.find('.') == std::string::npos ? fixed + ".0" : fixed;
}

// A value as Python's json.dumps writes it with ensure_ascii=False.
void AppendJson(const Json& value, const char* comma, const char* colon, std::string& out) {
  const char* before = "";
  if (value.is_object()) {
    out += '{';
    for (const auto& [key, member] : value.items()) {
      out += std::exchange(before, comma) + QuotedJson(key) + colon;
      AppendJson(member, comma, colon, out);
    }
    out += '}';
  } else if (value.is_array()) {
    out += '[';
    for (const Json& element : value) {
      out += std::exchange(before, comma);
      AppendJson(element, comma, colon, out);
    }
    out += ']';
  } else if (value.is_string()) {
    out += QuotedJson(value.get_ref<const std::string&>());
  } else {
    out += value.is_number_float() ? PythonFloat(value.get<double>()) : value.dump();
  }
}

// A string as it is, another scalar as Python's str() writes it.
std::string PythonText(const Json& scalar) {
  if (scalar.is_string()) return scalar.get<std::string>();
  if (scalar.is_null()) return "None";
  if (scalar.is_boolean()) return scalar.get<bool>() ? "True" : "False";
  return scalar.is_number_float() ? PythonFloat(scalar.get<double>()) : scalar.dump();
}

// Whether Python takes the value for false.
bool IsFalsy(const Json& value) {
  if (value.is_string()) return value.get_ref<const std::string&>().empty();
  if (value.is_number()) return value == 0;
  return value.is_null() || value == false || (value.is_structured() && value.empty());
}

// The type that a schema describes.
struct Type {
  enum class Form { kPlain, kObject, kArray, kAnyOf };
  Form form = Form::kPlain;
  std::string text = {};                      // kPlain: as it is written
  const Json* schema = nullptr;               // whose comments it has; null: none
  std::vector<const char*> constraints = {};  // its keys that become comments, sorted
  std::vector<Type> parts = {};            // kObject: the properties; kArray: the item; kAnyOf: the choices
  const Json* other_properties = nullptr;  // kObject: additionalProperties; null: none
  std::vector<Type> type_of_others = {};   // where that is a schema: its type
  // The next three describe a property.
  std::string name = {};
  bool is_optional = false;
  const Json* default_value = nullptr;  // null: none
};

// Declares one function. Fails as a whole if the schema has something for which declarations have no words.
class Declaration {
 public:
  explicit Declaration(const ChatTool& tool)
      : left_(kFreeBytes + kMostGrowth * (tool.description.size() + tool.parameters.size())) {}
  std::optional<std::string> Write(const ChatTool& tool);

 private:
  // Counts what is written. False if it is too much; the declaration then fails.
  bool Spend(size_t bytes) {
    failed_ |= bytes > left_;
    left_ -= std::min(bytes, left_);
    return !failed_;
  }
  Type Fail() {
    failed_ = true;
    return {};
  }
  Type Parse(const Json& schema);
  Type ParseObject(const Json& schema);
  Type ParseEnum(const Json& schema);
  Type ParseUnion(const Json& schema);
  Type ParseReference(const Json& schema);
  void ParseProperties(const Json& schema, Type& type);
  void Register(const Json& definitions);

  std::string Written(const Type& type, const std::string& indent);
  std::string WrittenObject(const Type& type, const std::string& indent);
  std::string WrittenProperty(const Type& property, const std::string& indent);
  std::string Comments(const Type& type, const std::string& indent);
  std::string CommentLines(std::string_view text, const std::string& indent);
  // The description of a schema; empty where it has none.
  std::string Description(const Json& schema);
  std::vector<std::string> Interfaces(const Type& root);

  using Definition = std::pair<std::string, const Json*>;
  std::vector<Definition> definitions_;  // $defs, in the order in which they were met
  bool refers_to_root_ = false;
  bool failed_ = false;
  size_t left_;  // bytes that may still be written
};

void Declaration::Register(const Json& definitions) {
  if (IsFalsy(definitions)) return;
  if (!definitions.is_object()) failed_ = true;
  for (const auto& [name, schema] : definitions.items()) {
    const auto known = std::ranges::find(definitions_, name, &Definition::first);
    if (known == definitions_.end()) {
      definitions_.emplace_back(name, &schema);
    } else {
      known->second = &schema;
    }
  }
}

Type Declaration::ParseReference(const Json& schema) {
  const Json& reference = schema["$ref"];
  if (reference == "#") {
    refers_to_root_ = true;
    return {.text = "parameters", .schema = &schema};
  }
  if (!reference.is_string() || !reference.get_ref<const std::string&>().starts_with("#/$defs/"))
    return Fail();
  const std::string path = reference.get<std::string>();
  const std::string name = path.substr(path.rfind('/') + 1);
  const auto found = std::ranges::find(definitions_, name, &Definition::first);
  if (found == definitions_.end() || !found->second->is_object()) return Fail();
  return {.text = name, .schema = &schema};
}

Type Declaration::ParseEnum(const Json& schema) {
  const Json& values = schema["enum"];
  if (!values.is_array()) return Fail();
  Json type = schema.value("type", Json());
  if (type.is_array()) {  // one type, or one type and null
    if (type.size() == 2 && type[0] != "null" && type[1] != "null") return Fail();
    if (type.empty() || type.size() > 2) return Fail();
    type = Json(type[0] == "null" && type.size() == 2 ? type[1] : type[0]);
  }
  std::vector<std::string> texts;
  for (const Json& value : values) {
    const bool is_integer = value.is_number_integer() || value.is_boolean();  // as bool is to Python
    const bool fits = value.is_null() || (type == "string"    ? value.is_string()
                                          : type == "number"  ? is_integer || value.is_number()
                                          : type == "integer" ? is_integer
                                          : type == "boolean" ? value.is_boolean()
                                                              : true);
    if (!fits || value.is_structured()) return Fail();
    texts.push_back(value.is_string() ? absl::StrCat("\"", value.get<std::string>(), "\"")
                                      : PythonText(value));
  }
  return {.text = absl::StrJoin(texts, " | "), .schema = &schema};
}

Type Declaration::ParseUnion(const Json& schema) {
  constexpr std::pair<const char*, const char*> kTypes[] = {
      {"string", "string"}, {"number", "number"}, {"integer", "number"},  {"boolean", "boolean"},
      {"null", "null"},     {"object", "{}"},     {"array", "Array<any>"}};
  std::vector<std::string> texts;
  for (const Json& name : schema["type"]) {
    const auto* const row =
        std::ranges::find_if(kTypes, [&](const auto& type) { return name == type.first; });
    if (row == std::end(kTypes)) return Fail();
    texts.emplace_back(row->second);
  }
  return {.text = absl::StrJoin(texts, " | "), .schema = &schema};
}

void Declaration::ParseProperties(const Json& schema, Type& type) {
  const Json& properties = schema["properties"];
  const Json required = schema.value("required", Json::array());
  const bool readable =
      properties.is_object() && required.is_array() &&
      std::none_of(required.begin(), required.end(), [](const Json& name) { return name.is_structured(); });
  if (!readable) {
    failed_ = true;
    return;
  }
  for (const auto& [name, property] : properties.items()) {
    Type part = Parse(property);
    part.name = name;
    part.is_optional = std::find(required.begin(), required.end(), Json(name)) == required.end();
    if (property.is_object() && property.contains("default") && !property["default"].is_null()) {
      part.default_value = &property["default"];
    }
    type.parts.push_back(std::move(part));
  }
}

Type Declaration::ParseObject(const Json& schema) {
  Type type = {.form = Type::Form::kObject, .schema = &schema};
  if (schema.contains("$defs")) Register(schema["$defs"]);
  if (schema.contains("additionalProperties") && !schema["additionalProperties"].is_null()) {
    type.other_properties = &schema["additionalProperties"];
    if (type.other_properties->is_object()) type.type_of_others.push_back(Parse(*type.other_properties));
  }
  if (schema.contains("properties")) ParseProperties(schema, type);
  return type;
}

Type Declaration::Parse(const Json& schema) {
  if (schema.is_boolean()) return {.text = schema.get<bool>() ? "any" : "null"};
  if (!schema.is_object()) return Fail();
  if (schema.contains("$ref")) return ParseReference(schema);
  if (schema.contains("anyOf")) {
    Type type = {.form = Type::Form::kAnyOf, .schema = &schema};
    if (!schema["anyOf"].is_array()) return Fail();
    for (const Json& choice : schema["anyOf"]) type.parts.push_back(Parse(choice));
    return type;
  }
  if (schema.contains("enum")) return ParseEnum(schema);
  if (schema.empty()) return {.text = "any"};
  if (!schema.contains("type")) return Fail();
  const Json& name = schema["type"];
  if (name.is_array()) return ParseUnion(schema);
  if (name == "object") return ParseObject(schema);
  if (name == "array") {
    Type type = {.form = Type::Form::kArray, .schema = &schema, .constraints = {"maxItems", "minItems"}};
    const bool has_items = schema.contains("items") && !IsFalsy(schema["items"]);
    type.parts.push_back(has_items ? Parse(schema["items"]) : Type{.text = "any"});
    return type;
  }
  if (!name.is_string()) return Fail();
  Type type = {.text = name == "integer" ? "number" : name.get<std::string>(), .schema = &schema};
  if (name == "string") type.constraints = {"maxLength", "minLength", "pattern"};
  if (name == "number" || name == "integer") type.constraints = {"maximum", "minimum"};
  return type;
}

std::string Declaration::Description(const Json& schema) {
  const auto found = schema.find("description");
  if (found == schema.end() || IsFalsy(*found)) return "";
  if (found->is_string()) return found->get<std::string>();
  failed_ = true;
  return "";
}

std::string Declaration::CommentLines(std::string_view text, const std::string& indent) {
  std::string lines;
  while (true) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    if (!Spend(indent.size() + line.size())) return "";
    if (!line.empty()) lines.append(indent).append("// ").append(line);
    if (end == std::string_view::npos) return lines;
    lines += '\n';
    text.remove_prefix(end + 1);
  }
}

std::string Declaration::Comments(const Type& type, const std::string& indent) {
  if (type.schema == nullptr) return "";
  std::string comments;
  if (const std::string text = Description(*type.schema); !text.empty()) {
    comments = CommentLines(text, indent) + "\n";
  }
  std::vector<std::string> constraints;
  for (const char* const key : type.constraints) {
    if (!type.schema->contains(key)) continue;
    failed_ |= (*type.schema)[key].is_structured();
    constraints.push_back(absl::StrCat(key, ": ", PythonText((*type.schema)[key])));
  }
  if (constraints.empty()) return comments;
  return absl::StrCat(comments, indent, "// ", absl::StrJoin(constraints, ", "), "\n");
}

std::string Declaration::WrittenProperty(const Type& property, const std::string& indent) {
  if (!Spend(indent.size() + property.name.size())) return "";
  std::string text = Comments(property, indent);
  if (property.default_value != nullptr) {
    const Json& value = *property.default_value;
    absl::StrAppend(&text, indent, "// Default: ");
    if (value.is_boolean()) {
      text += PythonText(value);
    } else {
      AppendJson(value, ", ", ": ", text);
    }
    text += '\n';
  }
  return absl::StrCat(text, indent, property.name, property.is_optional ? "?: " : ": ",
                      Written(property, indent));
}

std::string Declaration::WrittenObject(const Type& type, const std::string& indent) {
  const std::string inner = indent + kIndent;
  std::vector<std::string> members;
  for (const bool is_optional : {false, true}) {
    for (const Type& property : type.parts) {
      if (property.is_optional == is_optional) members.push_back(WrittenProperty(property, inner));
    }
  }
  if (const Json* const others = type.other_properties; others != nullptr) {
    if (!others->is_boolean() && !others->is_object()) failed_ = true;
    members.push_back(absl::StrCat(inner, "[k: string]: ",
                                   !type.type_of_others.empty() ? Written(type.type_of_others[0], inner)
                                   : *others == false           ? "never"
                                                                : "any"));
  }
  if (members.empty()) return "{}";
  return absl::StrCat("{\n", absl::StrJoin(members, ",\n"), "\n", indent, "}");
}

std::string Declaration::Written(const Type& type, const std::string& indent) {
  switch (type.form) {
    case Type::Form::kPlain:
      return type.text;
    case Type::Form::kObject:
      return WrittenObject(type, indent);
    case Type::Form::kAnyOf: {
      std::vector<std::string> texts;
      for (const Type& part : type.parts) texts.push_back(Written(part, indent));
      return absl::StrJoin(texts, " | ");
    }
    case Type::Form::kArray:
      break;
  }
  const std::string inner = indent + kIndent;
  const std::string comments = Comments(type.parts[0], inner);
  if (comments.empty()) return absl::StrCat("Array<", Written(type.parts[0], indent), ">");
  return absl::StrCat("Array<\n", comments, inner, Written(type.parts[0], inner), "\n", indent, ">");
}

std::vector<std::string> Declaration::Interfaces(const Type& root) {
  std::vector<std::string> interfaces;
  if (refers_to_root_) {
    std::vector<std::string> members;
    for (const Type& property : root.parts) members.push_back(WrittenProperty(property, kIndent));
    const std::string text = absl::StrJoin(members, ",\n");
    interfaces.push_back(absl::StrCat("interface parameters {", text.empty() ? "" : "\n" + text + "\n", "}"));
  }
  const auto definitions = definitions_;  // a copy: $defs within these get no interface
  for (const auto& [name, schema] : definitions) {
    if (!schema->is_object()) failed_ = true;
    if (failed_) return {};
    const std::string type = Written(Parse(*schema), "");
    const std::string text = Description(*schema);
    interfaces.push_back(
        absl::StrCat(text.empty() ? "" : CommentLines(text, "") + "\n", "interface ", name, " ", type));
  }
  return interfaces;
}

std::optional<std::string> Declaration::Write(const ChatTool& tool) {
  if (!tool.parameters.empty() && !IsJson(tool.parameters)) return std::nullopt;
  Json parameters = tool.parameters.empty() ? Json() : Json::parse(tool.parameters, nullptr, false);
  if (parameters.is_discarded()) return std::nullopt;  // a number that no double holds
  if (IsFalsy(parameters)) parameters = Json::object();
  if (!parameters.is_object()) return std::nullopt;
  const Type root = ParseObject(parameters);
  const bool names_root = refers_to_root_;
  std::vector<std::string> parts = Interfaces(root);
  if (!tool.description.empty()) parts.push_back(CommentLines(tool.description, ""));
  const std::string type = names_root ? "parameters" : Written(root, "");
  parts.push_back(absl::StrCat("type ", tool.name, " = (_: ", type, ") => any;"));
  if (failed_) return std::nullopt;
  return absl::StrJoin(parts, "\n");
}

}  // namespace

std::optional<std::string> TypescriptTools(std::span<const ChatTool> tools) {
  std::string functions;
  for (const ChatTool& tool : tools) {
    const std::optional<std::string> function = Declaration(tool).Write(tool);
    if (!function.has_value()) return std::nullopt;
    absl::StrAppend(&functions, *function, "\n");
  }
  return absl::StrCat("# Tools\n\n## functions\nnamespace functions {\n", functions, "}\n");
}

std::string SortedToolsJson(std::span<const ChatTool> tools) {
  std::string text = "[";
  for (const ChatTool& tool : tools) {
    if (text.size() > 1) text += ',';
    const std::string json = ToolJson(tool, JsonSpacing::kCompact);
    const Json value = IsJson(json) ? Json::parse(json, nullptr, false) : Json(Json::value_t::discarded);
    if (value.is_discarded()) {
      text += json;
    } else {
      AppendJson(value, ",", ":", text);
    }
  }
  return text + "]";
}

}  // namespace foredraft
