#pragma once

// Reads schemas; several that hold together are merged keyword by keyword. Every keyword is either enforced
// exactly, an annotation, or refused with its JSON pointer.

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "grammar/json_numbers.h"
#include "grammar/json_source.h"
#include "grammar/json_strings.h"
#include "grammar/limits.h"

namespace foredraft {

// One schema of a conjunction. Its anyOf or oneOf may be replaced by one branch, which is then a part of its
// own.
struct SchemaPart {
  const JsonValue* schema;
  bool any_of_is_chosen = false;
  bool one_of_is_chosen = false;
  friend auto operator<=>(const SchemaPart&, const SchemaPart&) = default;
  template <class H>
  friend H AbslHashValue(H h, const SchemaPart& part) {
    return H::combine(std::move(h), part.schema, part.any_of_is_chosen, part.one_of_is_chosen);
  }
};

// Schemas that hold together, with $ref and allOf followed, in order of appearance.
struct Conjunction {
  std::vector<SchemaPart> parts;
  const JsonValue* never = nullptr;  // the schema `false`, if it is one of them
};

using TypeSet = uint8_t;
inline constexpr TypeSet kNullType = 1, kBooleanType = 2, kFractionType = 4, kIntegerType = 8,
                         kStringType = 16, kArrayType = 32, kObjectType = 64, kAllTypes = 127;

// A conjunction's keywords, merged.
struct MergedSchema {
  TypeSet types = kAllTypes;
  const JsonValue* values = nullptr;  // of the first enum or const; the parts have the others
  NumberRange numbers;
  int64_t min_length = 0, max_length = -1;  // -1: no end, here and below
  std::vector<const JsonValue*> patterns;   // pattern and enforced format
  std::vector<const JsonValue*> excluded;   // patterns and lists of strings below "not"
  int64_t min_items = 0, max_items = -1;
  const JsonValue* unique_items = nullptr;  // the keyword's `true`
  int64_t min_properties = 0, max_properties = -1;
  std::vector<std::string> names;              // declared or required, in order
  std::vector<bool> is_required;               // [names]
  std::vector<const JsonValue*> key_patterns;  // patternProperties objects
  // The first part whose anyOf or oneOf has no chosen branch yet; -1: none.
  int branching_part = -1;
};

// Reads one document. Not thread-safe.
class SchemaReader {
 public:
  SchemaReader(const JsonValue& root, const GrammarLimits& limits, WorkCounter& work);

  // Adds a schema, and those that its $ref and allOf add to it.
  absl::Status Expand(const JsonValue& schema, Conjunction& conjunction);
  absl::StatusOr<MergedSchema> Merge(const Conjunction& conjunction);
  // The branches of the part's anyOf or oneOf, each joined with the rest of the conjunction. Branches of a
  // oneOf exclude what other branches match.
  absl::StatusOr<std::vector<Conjunction>> Branches(const Conjunction& conjunction, int part);
  // The schemas of the value of the key `name`; OthersOf: of the values of undeclared keys that match exactly
  // the patterns of `matched`.
  absl::StatusOr<Conjunction> PropertyOf(const Conjunction& conjunction, const std::string& name);
  absl::StatusOr<Conjunction> OthersOf(const Conjunction& conjunction,
                                       const std::vector<std::string>& matched);
  // The schemas of an element. PrefixCount is the length of the longest list of elements that are described
  // one by one.
  absl::StatusOr<Conjunction> ItemOf(const Conjunction& conjunction, size_t index);
  static size_t PrefixCount(const Conjunction& conjunction);

  // The values of an enum or const that satisfy all parts.
  absl::StatusOr<std::vector<const JsonValue*>> ValuesOf(const Conjunction& conjunction,
                                                         const JsonValue& values);
  // All values that satisfy all parts, each once; nothing where they are not known to be few.
  absl::StatusOr<std::optional<std::vector<const JsonValue*>>> FewValues(const Conjunction& conjunction);
  // Whether a value satisfies all parts.
  absl::StatusOr<bool> Holds(const JsonValue& value, const Conjunction& conjunction);
  // True: no value satisfies both. False: not known.
  absl::StatusOr<bool> AreDisjoint(const Conjunction& a, const Conjunction& b, int depth = 0);

  // Whether a member of MergedSchema::patterns is the value of `format`.
  static bool IsFormat(const JsonValue& pattern) { return pattern.parent->Find("format") == &pattern; }
  // The expression of a pattern or enforced format.
  static std::string ExpressionOf(const JsonValue& pattern);
  absl::StatusOr<std::shared_ptr<StringSet>> PatternOf(const JsonValue& pattern) {
    return PatternSet(pattern, ExpressionOf(pattern));
  }
  // The strings that match an expression. Errors name the place.
  absl::StatusOr<std::shared_ptr<StringSet>> PatternSet(const JsonValue& pattern,
                                                        std::string_view expression);
  // A string passes all of these tests exactly if `merged` allows it. With `has_short_formats` this holds up
  // to kShortFormatChars characters, and the automata are smaller.
  absl::StatusOr<std::vector<StringTest>> StringTests(const MergedSchema& merged,
                                                      bool has_short_formats = false);
  const GrammarLimits& limits() const { return limits_; }

 private:
  absl::Status ExpandObject(const JsonValue& schema, Conjunction& conjunction);
  // A schema that says without `keyword` what `schema` says with it; nullptr: see RewriteKeyword.
  const JsonValue* RewriteOf(const JsonValue& schema, std::string_view keyword);
  absl::StatusOr<const JsonValue*> Resolve(const JsonValue& reference);
  absl::Status MergeTypes(const JsonValue& schema, MergedSchema& merged) const;
  absl::Status MergeNumbers(const JsonValue& schema, MergedSchema& merged) const;
  absl::Status MergeMultiple(const JsonValue& schema, MergedSchema& merged) const;
  absl::Status MergeStrings(const JsonValue& schema, MergedSchema& merged) const;
  absl::Status MergeContainers(const JsonValue& schema, MergedSchema& merged) const;
  absl::Status CheckKeywords(const JsonValue& schema, TypeSet types);
  // Removes from each branch the values that another branch allows as well.
  absl::Status SeparateOneOf(const JsonValue& one_of, std::vector<Conjunction>& branches);
  // INVALID_ARGUMENT, because two branches may both match, if `schema` is in one that SeparateOneOf added.
  absl::Status CheckNoOverlap(const JsonValue& schema) const;

  absl::StatusOr<bool> PartHolds(const JsonValue& value, const SchemaPart& part);
  absl::StatusOr<bool> BranchesHold(const JsonValue& value, const SchemaPart& part);
  absl::StatusOr<bool> ContainerHolds(const JsonValue& value, const JsonValue& schema,
                                      const MergedSchema& merged);
  absl::StatusOr<bool> EnumsAreDisjoint(const JsonValue& values, const Conjunction& all_of,
                                        const Conjunction& other);
  absl::StatusOr<bool> PropertiesAreDisjoint(const Conjunction& a, const Conjunction& b,
                                             const MergedSchema& merged_a, const MergedSchema& merged_b,
                                             int depth);
  absl::StatusOr<bool> ItemsAreDisjoint(const Conjunction& a, const Conjunction& b, int64_t count, int depth);

  const JsonValue& root_;
  const GrammarLimits limits_;
  WorkCounter& work_;
  int branch_count_ = 0;
  int holds_depth_ = 0;
  std::optional<absl::flat_hash_map<std::string, const JsonValue*>> anchors_;  // once one is asked for
  std::vector<const JsonValue*> path_;  // schemas that are being expanded
  std::map<std::string, std::shared_ptr<StringSet>, std::less<>> pattern_sets_;
  absl::flat_hash_map<const JsonValue*, std::unique_ptr<JsonValue>> rewrites_;  // by the keyword's value
  // Excludes from branch `branch` of a oneOf what branch `other` matches.
  struct Overlap {
    std::unique_ptr<JsonValue> schema;
    size_t branch, other;
  };
  std::map<std::pair<const JsonValue*, const JsonValue*>, Overlap> overlaps_;
};

// INVALID_ARGUMENT "POINTER: what".
absl::Status RefuseSchema(const JsonValue& place, std::string_view what);
bool JsonEquals(const JsonValue& a, const JsonValue& b);
TypeSet TypeOf(const JsonValue& value);
int64_t CountChars(std::string_view text);

}  // namespace foredraft
