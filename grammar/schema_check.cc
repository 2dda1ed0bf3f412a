// Checks values against schemas, and schemas against each other.

#include <algorithm>
#include <string>

#include "base/status_macros.h"
#include "grammar/schema_reader.h"

namespace foredraft {

TypeSet TypeOf(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::kNull:
      return kNullType;
    case JsonValue::kBoolean:
      return kBooleanType;
    case JsonValue::kNumber: {
      const auto number = Decimal::Parse(value.text);
      return number.ok() && number->is_integer() ? kIntegerType : kFractionType;
    }
    case JsonValue::kString:
      return kStringType;
    case JsonValue::kArray:
      return kArrayType;
    case JsonValue::kObject:
      return kObjectType;
  }
  return 0;
}

int64_t CountChars(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; });
}

bool JsonEquals(const JsonValue& a, const JsonValue& b) {
  if (a.kind != b.kind || a.items.size() != b.items.size()) return false;
  if (a.is_number()) {
    const auto left = Decimal::Parse(a.text), right = Decimal::Parse(b.text);
    return left.ok() && right.ok() ? Decimal::Compare(*left, *right) == 0 : a.text == b.text;
  }
  if (a.boolean != b.boolean || a.text != b.text) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    const JsonValue* other = a.is_object() ? b.Find(a.keys[i]) : &b.items[i];
    if (other == nullptr || !JsonEquals(a.items[i], *other)) return false;
  }
  return true;
}

bool HasEqualItems(const JsonValue& array) {
  for (size_t b = 1; b < array.items.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      if (JsonEquals(array.items[a], array.items[b])) return true;
    }
  }
  return false;
}

absl::StatusOr<bool> SchemaReader::Holds(const JsonValue& value, const Conjunction& conjunction) {
  if (conjunction.never != nullptr) return false;
  for (const SchemaPart& part : conjunction.parts) {
    ASSIGN_OR_RETURN(const bool holds, PartHolds(value, part));
    if (!holds) return false;
  }
  return true;
}

// Checks the part's own keywords: $ref and allOf were expanded to other parts.
absl::StatusOr<bool> SchemaReader::PartHolds(const JsonValue& value, const SchemaPart& part) {
  const JsonValue& schema = *part.schema;
  if (!work_.Charge(10)) return work_.status();
  if (holds_depth_ > 4 * limits_.max_depth)
    return RefuseSchema(schema, "nested too deeply for an enumerated value");
  const TypeSet type = TypeOf(value);
  RETURN_IF_ERROR(CheckKeywords(schema, type));
  Conjunction alone;
  alone.parts.push_back({&schema});
  ASSIGN_OR_RETURN(const MergedSchema merged, Merge(alone));
  if ((merged.types & type) == 0) return false;
  if (const JsonValue* list = schema.Find("enum"); list != nullptr) {
    const auto same = [&](const JsonValue& item) { return JsonEquals(item, value); };
    if (std::none_of(list->items.begin(), list->items.end(), same)) return false;
  }
  if (const JsonValue* only = schema.Find("const"); only != nullptr && !JsonEquals(*only, value))
    return false;
  if (value.is_number()) {
    ASSIGN_OR_RETURN(const Decimal number, Decimal::Parse(value.text));
    NumberRange range = merged.numbers;
    range.is_integer = false;
    if (!range.Has(number)) return false;
  }
  if (value.is_string()) {
    const int64_t length = CountChars(value.text);
    if (length < merged.min_length || (merged.max_length >= 0 && length > merged.max_length)) return false;
    ASSIGN_OR_RETURN(const auto tests, StringTests(merged));
    for (const StringTest& test : tests) {
      ASSIGN_OR_RETURN(const bool matches, test.set->Has(value.text));
      if (matches != test.is_member) return false;
    }
  }
  ASSIGN_OR_RETURN(const bool holds, ContainerHolds(value, schema, merged));
  if (!holds) return false;
  return BranchesHold(value, part);
}

absl::StatusOr<bool> SchemaReader::ContainerHolds(const JsonValue& value, const JsonValue& schema,
                                                  const MergedSchema& merged) {
  if (!value.is_array() && !value.is_object()) return true;
  const int64_t count = static_cast<int64_t>(value.items.size());
  const int64_t min = value.is_array() ? merged.min_items : merged.min_properties;
  const int64_t max = value.is_array() ? merged.max_items : merged.max_properties;
  if (count < min || (max >= 0 && count > max)) return false;
  if (value.is_array() && merged.unique_items != nullptr && HasEqualItems(value)) return false;
  for (size_t n = 0; value.is_object() && n < merged.names.size(); ++n) {
    if (merged.is_required[n] && value.Find(merged.names[n]) == nullptr) return false;
  }
  Conjunction alone;
  alone.parts.push_back({&schema});
  ++holds_depth_;
  bool all_hold = true;
  for (size_t i = 0; i < value.items.size() && all_hold; ++i) {
    ASSIGN_OR_RETURN(const Conjunction inner,
                     value.is_array() ? ItemOf(alone, i) : PropertyOf(alone, value.keys[i]));
    ASSIGN_OR_RETURN(all_hold, Holds(value.items[i], inner));
  }
  --holds_depth_;
  return all_hold;
}

absl::StatusOr<bool> SchemaReader::BranchesHold(const JsonValue& value, const SchemaPart& part) {
  for (const char* keyword : {"anyOf", "oneOf"}) {
    // A chosen branch is a part of its own.
    const bool is_any = std::string_view(keyword) == "anyOf";
    const JsonValue* list = part.schema->Find(keyword);
    if (list == nullptr || (is_any ? part.any_of_is_chosen : part.one_of_is_chosen)) continue;
    int count = 0;
    ++holds_depth_;
    for (const JsonValue& item : list->items) {
      Conjunction branch;
      RETURN_IF_ERROR(Expand(item, branch));
      ASSIGN_OR_RETURN(const bool holds, Holds(value, branch));
      count += holds;
    }
    --holds_depth_;
    if (count == 0 || (count > 1 && !is_any)) return false;
  }
  return true;
}

absl::StatusOr<std::vector<const JsonValue*>> SchemaReader::ValuesOf(const Conjunction& conjunction,
                                                                     const JsonValue& values) {
  std::vector<const JsonValue*> list = {&values};
  const bool is_enum =
      values.is_array() && values.parent != nullptr && values.parent->Find("enum") == &values;
  if (is_enum) {
    list.clear();
    for (const JsonValue& item : values.items) list.push_back(&item);
  }
  std::vector<const JsonValue*> valid;
  for (const JsonValue* value : list) {
    ASSIGN_OR_RETURN(const bool holds, Holds(*value, conjunction));
    if (holds) valid.push_back(value);
  }
  return valid;
}

absl::StatusOr<std::optional<std::vector<const JsonValue*>>> SchemaReader::FewValues(
    const Conjunction& conjunction) {
  static const JsonValue kNull = {.kind = JsonValue::kNull};
  static const JsonValue kFalse = {.kind = JsonValue::kBoolean};
  static const JsonValue kTrue = {.kind = JsonValue::kBoolean, .boolean = true};
  std::vector<const JsonValue*> found;
  if (conjunction.never != nullptr) return found;
  ASSIGN_OR_RETURN(const MergedSchema merged, Merge(conjunction));
  const auto add = [&](const JsonValue* value) {
    const auto is_same = [&](const JsonValue* other) { return JsonEquals(*value, *other); };
    if (std::none_of(found.begin(), found.end(), is_same)) found.push_back(value);
  };
  if (merged.values != nullptr) {
    ASSIGN_OR_RETURN(const auto values, ValuesOf(conjunction, *merged.values));
    for (const JsonValue* value : values) add(value);
  } else if (merged.branching_part >= 0) {
    ASSIGN_OR_RETURN(const auto branches, Branches(conjunction, merged.branching_part));
    for (const Conjunction& branch : branches) {
      ASSIGN_OR_RETURN(const auto values, FewValues(branch));
      if (!values) return std::nullopt;
      for (const JsonValue* value : *values) add(value);
    }
  } else {
    if (merged.types & ~(kNullType | kBooleanType)) return std::nullopt;
    if (merged.types & kNullType) add(&kNull);
    if (merged.types & kBooleanType) found.insert(found.end(), {&kFalse, &kTrue});
  }
  return found;
}

absl::StatusOr<bool> SchemaReader::EnumsAreDisjoint(const JsonValue& values, const Conjunction& all_of,
                                                    const Conjunction& other) {
  ASSIGN_OR_RETURN(const auto valid, ValuesOf(all_of, values));
  for (const JsonValue* value : valid) {
    ASSIGN_OR_RETURN(const bool holds, Holds(*value, other));
    if (holds) return false;
  }
  return true;
}

absl::StatusOr<bool> SchemaReader::PropertiesAreDisjoint(const Conjunction& a, const Conjunction& b,
                                                         const MergedSchema& merged_a,
                                                         const MergedSchema& merged_b, int depth) {
  for (const MergedSchema* merged : {&merged_a, &merged_b}) {
    for (size_t n = 0; n < merged->names.size(); ++n) {
      if (!merged->is_required[n]) continue;
      ASSIGN_OR_RETURN(const Conjunction in_a, PropertyOf(a, merged->names[n]));
      ASSIGN_OR_RETURN(const Conjunction in_b, PropertyOf(b, merged->names[n]));
      ASSIGN_OR_RETURN(const bool are_disjoint, AreDisjoint(in_a, in_b, depth + 1));
      if (are_disjoint) return true;
    }
  }
  return false;
}

absl::StatusOr<bool> SchemaReader::ItemsAreDisjoint(const Conjunction& a, const Conjunction& b, int64_t count,
                                                    int depth) {
  const size_t described = std::max(PrefixCount(a), PrefixCount(b)) + 1;
  for (size_t i = 0; i < std::min<size_t>(described, static_cast<size_t>(count)); ++i) {
    ASSIGN_OR_RETURN(const Conjunction in_a, ItemOf(a, i));
    ASSIGN_OR_RETURN(const Conjunction in_b, ItemOf(b, i));
    ASSIGN_OR_RETURN(const bool are_disjoint, AreDisjoint(in_a, in_b, depth + 1));
    if (are_disjoint) return true;
  }
  return false;
}

absl::StatusOr<bool> SchemaReader::AreDisjoint(const Conjunction& a, const Conjunction& b, int depth) {
  constexpr int kMaxDisjointDepth = 6;
  if (a.never != nullptr || b.never != nullptr) return true;
  if (depth > kMaxDisjointDepth) return false;
  if (!work_.Charge(100)) return work_.status();
  ASSIGN_OR_RETURN(const MergedSchema left, Merge(a));
  ASSIGN_OR_RETURN(const MergedSchema right, Merge(b));
  const TypeSet common = left.types & right.types;
  if (common == 0) return true;
  if (left.values != nullptr) return EnumsAreDisjoint(*left.values, a, b);
  if (right.values != nullptr) return EnumsAreDisjoint(*right.values, b, a);
  for (const bool is_left : {true, false}) {
    const MergedSchema& merged = is_left ? left : right;
    if (merged.branching_part < 0) continue;
    ASSIGN_OR_RETURN(const auto branches, Branches(is_left ? a : b, merged.branching_part));
    for (const Conjunction& branch : branches) {
      ASSIGN_OR_RETURN(const bool are_disjoint, AreDisjoint(branch, is_left ? b : a, depth + 1));
      if (!are_disjoint) return false;
    }
    return true;
  }
  if (common & (kNullType | kBooleanType)) return false;
  if ((common & (kIntegerType | kFractionType)) && !NumberRange::AreDisjoint(left.numbers, right.numbers))
    return false;
  const auto apart = [](int64_t min_a, int64_t max_a, int64_t min_b, int64_t max_b) {
    return (max_a >= 0 && max_a < min_b) || (max_b >= 0 && max_b < min_a);
  };
  if ((common & kStringType) && !apart(left.min_length, left.max_length, right.min_length, right.max_length))
    return false;
  if ((common & kArrayType) && !apart(left.min_items, left.max_items, right.min_items, right.max_items)) {
    const int64_t count = std::max(left.min_items, right.min_items);
    ASSIGN_OR_RETURN(const bool are_disjoint, ItemsAreDisjoint(a, b, count, depth));
    if (!are_disjoint) return false;
  }
  if ((common & kObjectType) &&
      !apart(left.min_properties, left.max_properties, right.min_properties, right.max_properties)) {
    return PropertiesAreDisjoint(a, b, left, right, depth);
  }
  return true;
}

}  // namespace foredraft
