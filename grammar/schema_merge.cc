// Merges the keywords of a conjunction, and refuses those that are not supported.

#include <algorithm>
#include <string>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grammar/json_formats.h"
#include "grammar/schema_reader.h"
#include "grammar/schema_rewrite.h"

namespace foredraft {
namespace {

struct RefusedKeyword {
  std::string_view name;
  TypeSet types;  // the types of values that it constrains
};
constexpr RefusedKeyword kRefused[] = {{"not", kAllTypes},
                                       {"if", kAllTypes},
                                       {"$dynamicRef", kAllTypes},
                                       {"$recursiveRef", kAllTypes},
                                       {"extends", kAllTypes},
                                       {"disallow", kAllTypes},
                                       {"dependencies", kObjectType},
                                       {"dependentRequired", kObjectType},
                                       {"dependentSchemas", kObjectType},
                                       {"propertyNames", kObjectType},
                                       {"unevaluatedProperties", kObjectType},
                                       {"format", kStringType},
                                       {"contains", kArrayType},
                                       {"unevaluatedItems", kArrayType}};

// Whether the keyword, with this value, allows everything.
bool IsIdle(std::string_view keyword, const JsonValue& value) {
  if (keyword == "format") return !value.is_string() || !IsRefusedFormat(value.text);
  return value.kind == JsonValue::kBoolean && value.boolean && keyword.starts_with("unevaluated");
}

absl::StatusOr<TypeSet> TypeNamed(const JsonValue& name) {
  static constexpr std::pair<std::string_view, TypeSet> kTypes[] = {
      {"null", kNullType},       {"boolean", kBooleanType}, {"number", kFractionType | kIntegerType},
      {"integer", kIntegerType}, {"string", kStringType},   {"array", kArrayType},
      {"object", kObjectType},   {"any", kAllTypes}};
  for (const auto& [text, types] : kTypes) {
    if (name.is_string() && name.text == text) return types;
  }
  return RefuseSchema(name, "not a type, allowed null, boolean, number, integer, string, array or object");
}

absl::StatusOr<Decimal> NumberOf(const JsonValue& value) {
  if (!value.is_number()) return RefuseSchema(value, "not a number, allowed a number");
  auto number = Decimal::Parse(value.text);
  if (!number.ok()) return RefuseSchema(value, std::string(number.status().message()));
  return number;
}

// The bound of a length or count; `missing` without the keyword. Bounds from kLargestCount on are beyond any
// output and count as kLargestCount.
constexpr int64_t kLargestCount = 1 << 24;
absl::StatusOr<int64_t> CountOf(const JsonValue& schema, std::string_view keyword, int64_t missing) {
  const JsonValue* value = schema.Find(keyword);
  if (value == nullptr) return missing;
  ASSIGN_OR_RETURN(const Decimal number, NumberOf(*value));
  if (number.is_negative || !number.is_integer()) return RefuseSchema(*value, "allowed an integer from 0");
  return number.ToInt() ? std::min<int64_t>(*number.ToInt(), kLargestCount) : kLargestCount;
}

absl::Status RaiseMin(const JsonValue& schema, std::string_view keyword, int64_t& bound) {
  ASSIGN_OR_RETURN(const int64_t count, CountOf(schema, keyword, 0));
  bound = std::max(bound, count);
  return absl::OkStatus();
}

absl::Status LowerMax(const JsonValue& schema, std::string_view keyword, int64_t& bound) {
  ASSIGN_OR_RETURN(const int64_t count, CountOf(schema, keyword, kLargestCount));
  if (count < kLargestCount) bound = bound < 0 ? count : std::min(bound, count);
  return absl::OkStatus();
}

absl::Status CheckObject(const JsonValue* value) {
  if (value == nullptr || value->is_object()) return absl::OkStatus();
  return RefuseSchema(*value, "not an object, allowed an object of schemas");
}

}  // namespace

absl::Status SchemaReader::CheckKeywords(const JsonValue& schema, TypeSet types) {
  for (size_t i = 0; i < schema.keys.size(); ++i) {
    for (const RefusedKeyword& refused : kRefused) {
      if (schema.keys[i] != refused.name || (types & refused.types) == 0) continue;
      if (IsIdle(refused.name, schema.items[i])) continue;
      if (refused.name == "not" && (ExcludesStrings(schema) || ExcludesIntegers(schema))) continue;
      if (RewriteOf(schema, refused.name) != nullptr) continue;
      RETURN_IF_ERROR(CheckNoOverlap(schema));
      return RefuseSchema(schema.items[i], "not supported, allowed a schema without it");
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::MergeTypes(const JsonValue& schema, MergedSchema& merged) const {
  const JsonValue* type = schema.Find("type");
  if (type != nullptr) {
    TypeSet types = 0;
    if (type->is_array()) {
      for (const JsonValue& item : type->items) {
        ASSIGN_OR_RETURN(const TypeSet named, TypeNamed(item));
        types |= named;
      }
    } else {
      ASSIGN_OR_RETURN(types, TypeNamed(*type));
    }
    merged.types &= types;
  }
  if (ExcludesIntegers(schema)) merged.types &= ~kIntegerType;
  if (const JsonValue* values = schema.Find("enum"); values != nullptr) {
    if (!values->is_array()) return RefuseSchema(*values, "not a list, allowed a list of values");
    if (merged.values == nullptr) merged.values = values;
  }
  if (const JsonValue* value = schema.Find("const"); value != nullptr) merged.values = value;
  return absl::OkStatus();
}

absl::Status SchemaReader::MergeMultiple(const JsonValue& schema, MergedSchema& merged) const {
  const JsonValue* value = schema.Find("multipleOf");
  if (value == nullptr || (merged.types & (kIntegerType | kFractionType)) == 0) return absl::OkStatus();
  ASSIGN_OR_RETURN(const Decimal multiple, NumberOf(*value));
  if (Decimal::Compare(multiple, Decimal()) <= 0) return RefuseSchema(*value, "allowed a number above 0");
  if (merged.numbers.KeepMultiples(multiple)) return absl::OkStatus();
  return RefuseSchema(*value, "not supported, allowed numbers of up to 9 digits, with others their multiple");
}

absl::Status SchemaReader::MergeNumbers(const JsonValue& schema, MergedSchema& merged) const {
  for (const bool is_min : {true, false}) {
    const JsonValue* bound = schema.Find(is_min ? "minimum" : "maximum");
    const JsonValue* exclusive = schema.Find(is_min ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool is_flag = exclusive != nullptr && exclusive->kind == JsonValue::kBoolean;  // draft 4
    const auto apply = [&](const Decimal& value, bool excludes) {
      is_min ? merged.numbers.RaiseMin(value, excludes) : merged.numbers.LowerMax(value, excludes);
    };
    if (bound != nullptr) {
      ASSIGN_OR_RETURN(const Decimal value, NumberOf(*bound));
      apply(value, is_flag && exclusive->boolean);
    }
    if (exclusive != nullptr && !is_flag) {
      ASSIGN_OR_RETURN(const Decimal value, NumberOf(*exclusive));
      apply(value, true);
    }
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::MergeStrings(const JsonValue& schema, MergedSchema& merged) const {
  RETURN_IF_ERROR(RaiseMin(schema, "minLength", merged.min_length));
  RETURN_IF_ERROR(LowerMax(schema, "maxLength", merged.max_length));
  if (const JsonValue* pattern = schema.Find("pattern"); pattern != nullptr) {
    if (!pattern->is_string()) return RefuseSchema(*pattern, "not a string, allowed a regular expression");
    merged.patterns.push_back(pattern);
  }
  const JsonValue* format = schema.Find("format");
  if (format != nullptr && format->is_string() && FormatExpression(format->text))
    merged.patterns.push_back(format);
  if (schema.Find("not") != nullptr && ExcludesStrings(schema)) {
    merged.excluded.push_back(&schema.Find("not")->items[0]);
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::MergeContainers(const JsonValue& schema, MergedSchema& merged) const {
  RETURN_IF_ERROR(RaiseMin(schema, "minItems", merged.min_items));
  RETURN_IF_ERROR(LowerMax(schema, "maxItems", merged.max_items));
  RETURN_IF_ERROR(RaiseMin(schema, "minProperties", merged.min_properties));
  RETURN_IF_ERROR(LowerMax(schema, "maxProperties", merged.max_properties));
  if (const JsonValue* unique = schema.Find("uniqueItems"); unique != nullptr) {
    if (unique->kind != JsonValue::kBoolean) return RefuseSchema(*unique, "allowed true or false");
    if (unique->boolean) merged.unique_items = unique;
  }
  const JsonValue* patterns = schema.Find("patternProperties");
  RETURN_IF_ERROR(CheckObject(schema.Find("properties")));
  RETURN_IF_ERROR(CheckObject(patterns));
  if (patterns != nullptr && !patterns->keys.empty()) merged.key_patterns.push_back(patterns);
  return absl::OkStatus();
}

absl::StatusOr<MergedSchema> SchemaReader::Merge(const Conjunction& conjunction) {
  MergedSchema merged;
  for (size_t i = 0; i < conjunction.parts.size(); ++i) {
    const SchemaPart& part = conjunction.parts[i];
    RETURN_IF_ERROR(MergeTypes(*part.schema, merged));
    const bool has_choice = (part.schema->Find("anyOf") != nullptr && !part.any_of_is_chosen) ||
                            (part.schema->Find("oneOf") != nullptr && !part.one_of_is_chosen);
    if (has_choice && merged.branching_part < 0) merged.branching_part = static_cast<int>(i);
  }
  std::unordered_map<std::string, size_t> places;
  const auto place_of = [&](const std::string& name) {
    const auto [place, is_new] = places.try_emplace(name, merged.names.size());
    if (is_new) {
      merged.names.push_back(name);
      merged.is_required.push_back(false);
    }
    return place->second;
  };
  for (const SchemaPart& part : conjunction.parts) {
    const JsonValue& schema = *part.schema;
    // A branch may leave fewer types, and enumerated values are checked one by one.
    const bool is_last = merged.branching_part < 0 && merged.values == nullptr;
    if (is_last) RETURN_IF_ERROR(CheckKeywords(schema, merged.types));
    RETURN_IF_ERROR(MergeMultiple(schema, merged));
    RETURN_IF_ERROR(MergeNumbers(schema, merged));
    RETURN_IF_ERROR(MergeStrings(schema, merged));
    RETURN_IF_ERROR(MergeContainers(schema, merged));
    if (const JsonValue* properties = schema.Find("properties"); properties != nullptr) {
      if (!work_.Charge(static_cast<int64_t>(properties->keys.size()))) return work_.status();
      for (const std::string& name : properties->keys) place_of(name);
    }
  }
  for (const SchemaPart& part : conjunction.parts) {
    const JsonValue* required = part.schema->Find("required");
    if (required == nullptr) continue;
    if (!required->is_array()) return RefuseSchema(*required, "not a list, allowed a list of names");
    for (const JsonValue& name : required->items) {
      if (!name.is_string()) return RefuseSchema(name, "not a string, allowed the name of a property");
      merged.is_required[place_of(name.text)] = true;
    }
  }
  if ((merged.types & kFractionType) == 0) merged.numbers.is_integer = true;
  merged.numbers.is_fraction = (merged.types & kIntegerType) == 0;
  return merged;
}

}  // namespace foredraft
