#include "grammar/schema_rewrite.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "grammar/json_formats.h"
#include "grammar/json_numbers.h"

namespace foredraft {
namespace {

JsonValue Text(std::string_view text) {
  JsonValue value;
  value.kind = JsonValue::kString;
  value.text = text;
  return value;
}

JsonValue Boolean(bool boolean) {
  JsonValue value;
  value.kind = JsonValue::kBoolean;
  value.boolean = boolean;
  return value;
}

JsonValue Array(std::vector<JsonValue> items) {
  JsonValue value;
  value.kind = JsonValue::kArray;
  value.items = std::move(items);
  return value;
}

JsonValue Object(std::vector<std::pair<std::string, JsonValue>> members) {
  JsonValue value;
  value.kind = JsonValue::kObject;
  for (std::pair<std::string, JsonValue>& member : members) {
    value.keys.push_back(std::move(member.first));
    value.items.push_back(std::move(member.second));
  }
  return value;
}

JsonValue Not(JsonValue schema) { return Object({{"not", std::move(schema)}}); }
JsonValue AnyOf(std::vector<JsonValue> choices) {
  if (choices.empty()) return Boolean(false);
  if (choices.size() == 1) return std::move(choices[0]);
  return Object({{"anyOf", Array(std::move(choices))}});
}

// Keywords whose complement no other keyword can express, with the type of values that they constrain.
constexpr std::pair<std::string_view, std::string_view> kWithoutComplement[] = {
    {"oneOf", ""},
    {"if", ""},
    {"$dynamicRef", ""},
    {"$recursiveRef", ""},
    {"extends", ""},
    {"disallow", ""},
    {"format", "string"},
    {"multipleOf", "number"},
    {"items", "array"},
    {"prefixItems", "array"},
    {"additionalItems", "array"},
    {"uniqueItems", "array"},
    {"contains", "array"},
    {"unevaluatedItems", "array"},
    {"patternProperties", "object"},
    {"additionalProperties", "object"},
    {"propertyNames", "object"},
    {"unevaluatedProperties", "object"},
    {"dependencies", "object"},
    {"dependentRequired", "object"},
    {"dependentSchemas", "object"}};

// Makes the complement of a schema, keyword by keyword: a value that violates one keyword violates the
// schema.
class Negation {
 public:
  Negation(const JsonValue& schema, const ReferenceResolver& resolve) : schema_(schema), resolve_(resolve) {}

  std::optional<JsonValue> Make() {
    for (size_t i = 0; i < schema_.keys.size(); ++i) Add(schema_.keys[i], schema_.items[i]);
    if (is_broken_ || (without_complement_ > 0 && choices_.size() == 1)) return std::nullopt;
    return AnyOf(std::move(choices_));
  }

 private:
  void Add(const std::string& keyword, const JsonValue& value) {
    if (keyword == "not") return choices_.push_back(value);
    if (keyword == "$ref") {
      const JsonValue* target = resolve_(value);
      if (target == nullptr) return Break();
      return choices_.push_back(Not(*target));
    }
    if (keyword == "type") return AddTypes(value);
    if (keyword == "enum") return value.is_array() ? AddValues(value.items) : Break();
    if (keyword == "const") return AddValues({value});
    if (keyword == "pattern") return AddBelowNot("string", Object({{"pattern", value}}));
    if (keyword == "allOf" || keyword == "anyOf") return AddBranches(value, keyword == "allOf");
    if (keyword == "required") return AddRequired(value);
    if (keyword == "properties") return AddProperties(value);
    if (AddBound(keyword, value) || AddCount(keyword, value)) return;
    for (const auto& [name, type] : kWithoutComplement) {
      if (keyword != name || IsAnnotation(keyword, value)) continue;
      ++without_complement_;
      AddBelowNot(type, Object({{keyword, value}}));
    }
  }

  static bool IsAnnotation(std::string_view keyword, const JsonValue& value) {
    return keyword == "format" &&
           !(value.is_string() && (FormatExpression(value.text) || IsRefusedFormat(value.text)));
  }

  void Break() { is_broken_ = true; }

  // Keeps the keywords below `not`. Some keywords of strings are supported there; the others are refused
  // where a value of the type may come.
  void AddBelowNot(std::string_view type, JsonValue keywords) {
    JsonValue choice = Not(std::move(keywords));
    if (!type.empty()) {
      choice.keys.emplace_back("type");
      choice.items.push_back(Text(type));
    }
    choices_.push_back(std::move(choice));
  }

  void AddFractions() {
    JsonValue one = Text("1");
    one.kind = JsonValue::kNumber;
    AddBelowNot("number", Object({{"multipleOf", std::move(one)}}));
  }

  void AddTypes(const JsonValue& value) {
    std::vector<std::string_view> left = {"null", "boolean", "number", "string", "array", "object"};
    const std::vector<JsonValue> named = value.is_array() ? value.items : std::vector<JsonValue>{value};
    bool has_integer = false;
    for (const JsonValue& name : named) {
      if (!name.is_string()) return Break();
      if (name.text == "integer") {
        has_integer = true;
      } else if (name.text == "any") {
        left.clear();
      } else if (std::erase(left, name.text) == 0) {
        return Break();
      }
    }
    if (has_integer && std::erase(left, "number") > 0) AddFractions();
    if (left.empty()) return;
    std::vector<JsonValue> names;
    for (const std::string_view name : left) names.push_back(Text(name));
    choices_.push_back(Object({{"type", Array(std::move(names))}}));
  }

  void AddValues(const std::vector<JsonValue>& values) {
    std::vector<JsonValue> names, strings, arrays, objects;
    std::vector<Decimal> numbers;
    std::vector<std::string> spellings;
    bool has_null = false, has_boolean[2] = {false, false};
    for (const JsonValue& value : values) {
      if (value.kind == JsonValue::kNull) has_null = true;
      if (value.kind == JsonValue::kBoolean) has_boolean[value.boolean] = true;
      if (value.is_string()) strings.push_back(value);
      if (value.is_array()) arrays.push_back(value);
      if (value.is_object()) objects.push_back(value);
      if (!value.is_number()) continue;
      const auto number = Decimal::Parse(value.text);
      if (!number.ok()) return Break();
      numbers.push_back(*number);
      spellings.push_back(value.text);
    }
    if (!has_null) names.push_back(Text("null"));
    if (!has_boolean[0] && !has_boolean[1]) names.push_back(Text("boolean"));
    if (has_boolean[0] != has_boolean[1]) choices_.push_back(Object({{"const", Boolean(has_boolean[0])}}));
    if (numbers.empty()) names.push_back(Text("number"));
    if (!numbers.empty()) AddOtherNumbers(numbers, spellings);
    const std::pair<std::string_view, std::vector<JsonValue>*> lists[] = {
        {"string", &strings}, {"array", &arrays}, {"object", &objects}};
    for (const auto& [type, list] : lists) {
      if (list->empty()) {
        names.push_back(Text(type));
      } else {
        AddBelowNot(type, Object({{"enum", Array(std::move(*list))}}));
      }
    }
    if (!names.empty()) choices_.push_back(Object({{"type", Array(std::move(names))}}));
  }

  // Adds the intervals between the numbers.
  void AddOtherNumbers(const std::vector<Decimal>& numbers, const std::vector<std::string>& spellings) {
    std::vector<size_t> order(numbers.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::sort(order.begin(), order.end(),
              [&](size_t a, size_t b) { return Decimal::Compare(numbers[a], numbers[b]) < 0; });
    const auto number = [&](size_t i) {
      JsonValue value = Text(spellings[i]);
      value.kind = JsonValue::kNumber;
      return value;
    };
    for (size_t i = 0; i <= order.size(); ++i) {
      JsonValue interval = Object({{"type", Text("number")}});
      if (i > 0) {
        interval.keys.emplace_back("exclusiveMinimum");
        interval.items.push_back(number(order[i - 1]));
      }
      if (i < order.size()) {
        interval.keys.emplace_back("exclusiveMaximum");
        interval.items.push_back(number(order[i]));
      }
      choices_.push_back(std::move(interval));
    }
  }

  void AddBranches(const JsonValue& list, bool is_all_of) {
    if (!list.is_array() || list.items.empty()) return Break();
    std::vector<JsonValue> branches;
    for (const JsonValue& item : list.items) branches.push_back(Not(item));
    choices_.push_back(is_all_of ? AnyOf(std::move(branches))
                                 : Object({{"allOf", Array(std::move(branches))}}));
  }

  void AddRequired(const JsonValue& names) {
    if (!names.is_array()) return Break();
    for (const JsonValue& name : names.items) {
      if (!name.is_string()) return Break();
      choices_.push_back(
          Object({{"type", Text("object")}, {"properties", Object({{name.text, Boolean(false)}})}}));
    }
  }

  void AddProperties(const JsonValue& properties) {
    if (!properties.is_object()) return Break();
    for (size_t i = 0; i < properties.keys.size(); ++i) {
      const std::string& name = properties.keys[i];
      choices_.push_back(Object({{"type", Text("object")},
                                 {"required", Array({Text(name)})},
                                 {"properties", Object({{name, Not(properties.items[i])}})}}));
    }
  }

  bool AddBound(std::string_view keyword, const JsonValue& value) {
    const bool is_min = keyword == "minimum" || keyword == "exclusiveMinimum";
    if (!is_min && keyword != "maximum" && keyword != "exclusiveMaximum") return false;
    if (value.kind == JsonValue::kBoolean) return true;  // draft 4: read with the bound
    if (!value.is_number()) {
      Break();
      return true;
    }
    const JsonValue* flag = schema_.Find(is_min ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool is_exclusive = keyword.starts_with("exclusive") ||
                              (flag != nullptr && flag->kind == JsonValue::kBoolean && flag->boolean);
    const std::string opposite =
        is_exclusive ? (is_min ? "maximum" : "minimum") : (is_min ? "exclusiveMaximum" : "exclusiveMinimum");
    choices_.push_back(Object({{"type", Text("number")}, {opposite, value}}));
    return true;
  }

  bool AddCount(std::string_view keyword, const JsonValue& value) {
    static constexpr std::pair<std::string_view, std::string_view> kCounted[] = {
        {"Length", "string"}, {"Items", "array"}, {"Properties", "object"}};
    for (const auto& [unit, type] : kCounted) {
      const bool is_min = keyword == "min" + std::string(unit);
      if (!is_min && keyword != "max" + std::string(unit)) continue;
      const auto number = value.is_number() ? Decimal::Parse(value.text) : Decimal();
      const auto count = number.ok() ? number->ToInt() : std::nullopt;
      if (!value.is_number() || !count || *count < 0 || *count == INT32_MAX) {
        Break();
      } else if (!is_min || *count > 0) {
        JsonValue bound = Text(absl::StrCat(is_min ? *count - 1 : *count + 1));
        bound.kind = JsonValue::kNumber;
        choices_.push_back(
            Object({{"type", Text(type)}, {(is_min ? "max" : "min") + std::string(unit), std::move(bound)}}));
      }
      return true;
    }
    return false;
  }

  const JsonValue& schema_;
  const ReferenceResolver& resolve_;
  std::vector<JsonValue> choices_;
  int without_complement_ = 0;  // choices whose keyword has no complement
  bool is_broken_ = false;
};

// Whether `schema` has the form that AddBelowNot makes for values of one type, and is not rewritten again.
bool IsReduced(const JsonValue& schema) {
  const JsonValue* type = schema.Find("type");
  const JsonValue* excluded = schema.Find("not");
  if (type == nullptr || !type->is_string() || excluded == nullptr || excluded->keys.size() != 1)
    return false;
  const JsonValue& value = excluded->items[0];
  if (excluded->keys[0] == "pattern") return type->text == "string" && value.is_string();
  const auto has_type = [&](const JsonValue& item) {
    return (item.is_string() && type->text == "string") || (item.is_array() && type->text == "array") ||
           (item.is_object() && type->text == "object");
  };
  return excluded->keys[0] == "enum" && value.is_array() &&
         std::all_of(value.items.begin(), value.items.end(), has_type);
}

std::optional<JsonValue> Negated(const JsonValue& schema, const ReferenceResolver& resolve) {
  const JsonValue& excluded = *schema.Find("not");
  if (excluded.kind == JsonValue::kBoolean) return Boolean(!excluded.boolean);
  if (!excluded.is_object() || IsReduced(schema)) return std::nullopt;
  return Negation(excluded, resolve).Make();
}

// Either `if` and `then` hold, or `else` holds and `if` does not.
JsonValue Condition(const JsonValue& schema) {
  const JsonValue& condition = *schema.Find("if");
  const JsonValue* then = schema.Find("then");
  const JsonValue* otherwise = schema.Find("else");
  if (then == nullptr && otherwise == nullptr) return Boolean(true);
  return AnyOf(
      {Object({{"allOf", Array({condition, then == nullptr ? Boolean(true) : *then})}}),
       Object({{"allOf", Array({Not(condition), otherwise == nullptr ? Boolean(true) : *otherwise})}})});
}

JsonValue WithoutProperty(const std::string& name) {
  return Object({{"properties", Object({{name, Boolean(false)}})}});
}

// For each property: it is absent, or what depends on it holds.
std::optional<JsonValue> Dependencies(const JsonValue& dependencies) {
  if (!dependencies.is_object()) return std::nullopt;
  std::vector<JsonValue> all;
  for (size_t i = 0; i < dependencies.keys.size(); ++i) {
    JsonValue needed = dependencies.items[i];
    if (needed.is_string()) needed = Array({needed});  // draft 3
    if (needed.is_array()) needed = Object({{"required", std::move(needed)}});
    all.push_back(AnyOf({WithoutProperty(dependencies.keys[i]), std::move(needed)}));
  }
  return Object({{"allOf", Array(std::move(all))}});
}

// Objects all of whose keys match.
JsonValue OnlyKeys(const std::string& pattern) {
  return Object(
      {{"patternProperties", Object({{pattern, Boolean(true)}})}, {"additionalProperties", Boolean(false)}});
}

std::optional<JsonValue> OnlyNames(const std::vector<JsonValue>& names, bool is_allowed) {
  JsonValue properties = Object({});
  for (const JsonValue& name : names) {
    if (!name.is_string() || properties.Find(name.text) != nullptr) continue;
    properties.keys.push_back(name.text);
    properties.items.push_back(Boolean(is_allowed));
  }
  JsonValue object = Object({{"properties", std::move(properties)}});
  if (!is_allowed) return object;
  object.keys.emplace_back("additionalProperties");
  object.items.push_back(Boolean(false));
  return object;
}

// Rewrites propertyNames to keywords of the properties themselves.
std::optional<JsonValue> PropertyNames(const JsonValue& names, const ReferenceResolver& resolve,
                                       int depth = 0) {
  constexpr int kMaxReferences = 16;  // in a chain

  if (names.kind == JsonValue::kBoolean && !names.boolean) return OnlyNames({}, true);
  if (names.kind == JsonValue::kBoolean) return Boolean(true);
  if (!names.is_object()) return std::nullopt;
  std::vector<JsonValue> all;
  for (size_t i = 0; i < names.keys.size(); ++i) {
    const std::string& keyword = names.keys[i];
    const JsonValue& value = names.items[i];
    if (keyword == "$schema" || keyword == "title" || keyword == "description" || keyword == "$comment")
      continue;
    std::optional<JsonValue> part;
    const auto length = value.is_number() ? Decimal::Parse(value.text) : absl::InvalidArgumentError("");
    const int count = length.ok() ? length->ToInt().value_or(-1) : -1;
    if (keyword == "$ref" && depth < kMaxReferences) {
      const JsonValue* target = resolve(value);
      if (target != nullptr) part = PropertyNames(*target, resolve, depth + 1);
    }
    if (keyword == "type" && value.is_string() && value.text == "string") part = Boolean(true);
    if (keyword == "pattern" && value.is_string()) part = OnlyKeys(value.text);
    if (keyword == "minLength" && count >= 0) part = OnlyKeys(absl::StrCat("^[^]{", count, ",}$"));
    if (keyword == "maxLength" && count >= 0) part = OnlyKeys(absl::StrCat("^[^]{0,", count, "}$"));
    if (keyword == "format" && value.is_string() && !IsRefusedFormat(value.text)) {
      const auto expression = FormatExpression(value.text);
      part = expression ? OnlyKeys(*expression) : Boolean(true);
    }
    if (keyword == "enum" && value.is_array()) part = OnlyNames(value.items, true);
    if (keyword == "const") part = OnlyNames({value}, true);
    if (keyword == "not" && value.keys.size() == 1) {
      const JsonValue& excluded = value.items[0];
      if (value.keys[0] == "enum" && excluded.is_array()) part = OnlyNames(excluded.items, false);
      if (value.keys[0] == "const") part = OnlyNames({excluded}, false);
      if (value.keys[0] == "pattern" && excluded.is_string()) {
        part = Object({{"patternProperties", Object({{excluded.text, Boolean(false)}})}});
      }
    }
    if (!part) return std::nullopt;
    all.push_back(*std::move(part));
  }
  return Object({{"allOf", Array(std::move(all))}});
}

}  // namespace

std::span<const std::string_view> RewrittenKeywords() {
  static constexpr std::string_view kKeywords[] = {
      "not", "if", "dependencies", "dependentRequired", "dependentSchemas", "propertyNames"};
  return kKeywords;
}

std::optional<JsonValue> RewriteKeyword(const JsonValue& schema, std::string_view keyword,
                                        const ReferenceResolver& resolve) {
  if (keyword == "not") return Negated(schema, resolve);
  if (keyword == "if") return Condition(schema);
  if (keyword == "propertyNames") return PropertyNames(*schema.Find(keyword), resolve);
  return Dependencies(*schema.Find(keyword));
}

JsonValue NotSchema(const JsonValue& schema) { return Not(schema); }

bool ExcludesStrings(const JsonValue& schema) {
  return IsReduced(schema) && schema.Find("type")->text == "string";
}

bool ExcludesIntegers(const JsonValue& schema) {
  const JsonValue* type = schema.Find("type");
  const JsonValue* excluded = schema.Find("not");
  const bool has_one = type != nullptr && excluded != nullptr && excluded->keys.size() == 1;
  return has_one && type->text == "number" && excluded->keys[0] == "multipleOf" &&
         excluded->items[0].is_number() && excluded->items[0].text == "1";
}

}  // namespace foredraft
