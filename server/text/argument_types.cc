#include "server/text/argument_types.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "config/json_text.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr char kWhiteSpace[] = " \n\r\t";
// References may double from level to level, and lead back to themselves.
constexpr int kMostSteps = 20000;  // schemas and enumerated values that are read for one argument
constexpr int kMostDepth = 32;
constexpr size_t kMostValues = 64;  // if there are more, only their types count

constexpr unsigned kNullType = 1, kBooleanType = 2, kNumberType = 4, kStringType = 8, kArrayType = 16,
                   kObjectType = 32, kAnyType = ~0u;

unsigned TypeOf(const json& value) {
  if (value.is_string()) return kStringType;
  if (value.is_number()) return kNumberType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_array()) return kArrayType;
  return value.is_object() ? kObjectType : kNullType;
}

unsigned TypeNamed(const json& name) {
  if (name == "string") return kStringType;
  if (name == "number" || name == "integer") return kNumberType;
  if (name == "boolean") return kBooleanType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return name == "null" ? kNullType : kAnyType;
}

bool Has(const std::vector<json>& values, const json& value) {
  return std::find(values.begin(), values.end(), value) != values.end();
}

ArgumentType Both(ArgumentType a, const ArgumentType& b) {
  a.types &= b.types;
  if (!a.values) {
    a.values = b.values;
  } else if (b.values) {
    std::erase_if(*a.values, [&b](const json& value) { return !Has(*b.values, value); });
  }
  return a;
}

ArgumentType Either(ArgumentType a, const ArgumentType& b) {
  a.types |= b.types;
  if (a.values && b.values && a.values->size() + b.values->size() <= kMostValues) {
    a.values->insert(a.values->end(), b.values->begin(), b.values->end());
  } else {
    a.values.reset();
  }
  return a;
}

ArgumentType OneOf(const std::vector<json>& values) {
  ArgumentType type{.types = 0};
  for (const json& value : values) type.types |= TypeOf(value);
  if (values.size() <= kMostValues) type.values = values;
  return type;
}

// The schema that a reference of the same document names; nullptr where there is none.
const json* Resolve(const json& root, const json& reference) {
  if (!reference.is_string()) return nullptr;
  const std::string pointer = reference.get<std::string>();
  if (pointer == "#") return &root;
  if (!pointer.starts_with("#/")) return nullptr;
  const json* at = &root;
  const std::vector<std::string> parts = absl::StrSplit(pointer.substr(2), '/');
  for (const std::string& part : parts) {
    const std::string name = absl::StrReplaceAll(absl::StrReplaceAll(part, {{"~1", "/"}}), {{"~0", "~"}});
    size_t index = 0;
    if (at->is_object() && at->contains(name)) {
      at = &(*at)[name];
    } else if (at->is_array() && absl::SimpleAtoi(name, &index) && index < at->size()) {
      at = &(*at)[index];
    } else {
      return nullptr;
    }
  }
  return at;
}

// Reads one argument's schema.
class TypeReader {
 public:
  explicit TypeReader(const json& root) : root_(root) {}

  ArgumentType Read(const json& schema, int depth = 0) {
    ArgumentType all;
    if (!schema.is_object() || depth > kMostDepth || --steps_left_ < 0) return all;
    for (const auto& [keyword, value] : schema.items()) {
      if (keyword == "$ref") {
        if (const json* named = Resolve(root_, value)) all = Both(std::move(all), Read(*named, depth + 1));
      } else if (keyword == "allOf" && value.is_array()) {
        for (const json& part : value) all = Both(std::move(all), Read(part, depth + 1));
      } else if ((keyword == "anyOf" || keyword == "oneOf") && value.is_array() && !value.empty()) {
        ArgumentType any = Read(value[0], depth + 1);
        for (size_t i = 1; i < value.size(); ++i) any = Either(std::move(any), Read(value[i], depth + 1));
        all = Both(std::move(all), any);
      } else if (keyword == "type") {
        all.types &= Types(value);
      } else if (keyword == "const") {
        all = Both(std::move(all), OneOf({value}));
      } else if (keyword == "enum" && value.is_array()) {
        steps_left_ -= static_cast<int>(value.size());
        if (steps_left_ < 0) return ArgumentType();
        all = Both(std::move(all), OneOf(value.get_ref<const json::array_t&>()));
      }
    }
    return all;
  }

  // Appends the schemas that hold for the arguments together: the root, and what it refers to.
  void Parts(const json& schema, std::vector<const json*>& parts, int depth = 0) {
    if (!schema.is_object() || depth > kMostDepth || --steps_left_ < 0) return;
    parts.push_back(&schema);
    if (const auto reference = schema.find("$ref"); reference != schema.end()) {
      if (const json* named = Resolve(root_, *reference)) Parts(*named, parts, depth + 1);
    }
    const auto all_of = schema.find("allOf");
    if (all_of == schema.end() || !all_of->is_array()) return;
    for (const json& part : *all_of) Parts(part, parts, depth + 1);
  }

 private:
  static unsigned Types(const json& names) {
    if (!names.is_array()) return TypeNamed(names);
    unsigned types = 0;
    for (const json& name : names) types |= TypeNamed(name);
    return types;
  }

  const json& root_;
  int steps_left_ = kMostSteps;
};

}  // namespace

bool ArgumentType::is_string() const { return types == kStringType; }

std::string ArgumentType::JsonOf(const std::string& text) const {
  const size_t begin = text.find_first_not_of(kWhiteSpace);
  const std::string stripped =
      begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kWhiteSpace) + 1 - begin);
  if (!IsJson(stripped)) return QuotedJson(text);
  const bool may_be_string = (types & kStringType) != 0;
  if (!may_be_string) return stripped;
  const json value = json::parse(stripped);
  if ((TypeOf(value) & types) == 0) return QuotedJson(text);
  const bool is_named_string = values && !Has(*values, value) && Has(*values, json(text));
  return is_named_string ? QuotedJson(text) : stripped;
}

ArgumentTypes::ArgumentTypes(const ChatTool& tool)
    : schema_(json::parse(tool.parameters, nullptr, /*allow_exceptions=*/false)) {}

ArgumentType ArgumentTypes::Of(const std::string& key) const {
  TypeReader reader(schema_);
  std::vector<const json*> parts;
  reader.Parts(schema_, parts);
  ArgumentType all;
  for (const json* part : parts) {
    const auto properties = part->find("properties");
    const auto others = part->find("additionalProperties");
    if (properties != part->end() && properties->is_object() && properties->contains(key)) {
      all = Both(std::move(all), reader.Read((*properties)[key]));
    } else if (others != part->end()) {
      all = Both(std::move(all), reader.Read(*others));
    }
  }
  return all.types == 0 ? ArgumentType{} : all;
}

bool ArgumentTypes::is_dictionary() const {
  std::vector<const json*> parts;
  TypeReader(schema_).Parts(schema_, parts);
  bool says_others = false, says_declared = false;
  for (const json* part : parts) {
    const auto properties = part->find("properties");
    if (properties != part->end() && !properties->empty()) return false;
    says_declared |= properties != part->end();
    const auto others = part->find("additionalProperties");
    if (others == part->end()) continue;
    if (*others == false) return false;
    says_others = true;
  }
  return !parts.empty() && (says_others || !says_declared);
}

}  // namespace foredraft
