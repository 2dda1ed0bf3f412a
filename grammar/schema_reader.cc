#include "grammar/schema_reader.h"

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/status_macros.h"
#include "grammar/json_formats.h"
#include "grammar/regex.h"
#include "grammar/schema_rewrite.h"

namespace foredraft {
namespace {

// Decodes %20 and the like.
std::string UnescapeUri(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 1])) &&
        absl::ascii_isxdigit(static_cast<unsigned char>(text[i + 2]))) {
      out += absl::HexStringToBytes(std::string(text.substr(i + 1, 2)));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

// What identifies a schema: $id, or id in draft 4. Nullptr: nothing.
const JsonValue* IdOf(const JsonValue& schema) {
  const JsonValue* id = schema.Find("$id");
  if (id == nullptr) id = schema.Find("id");
  return id != nullptr && id->is_string() ? id : nullptr;
}

// What follows the # of a reference to this document, which may be named by its own $id. Nothing if the
// reference is to another document.
std::optional<std::string_view> FragmentOf(const JsonValue& reference, const JsonValue& root) {
  if (!reference.is_string()) return std::nullopt;
  const std::string_view text = reference.text;
  const size_t end = std::min(text.find('#'), text.size());
  const std::string_view document = text.substr(0, end);
  const JsonValue* id = IdOf(root);
  const std::string_view own = id == nullptr ? "" : std::string_view(id->text).substr(0, id->text.find('#'));
  // A document may be named by its whole address or, relative to that, by the address's last part.
  const bool is_own = document.empty() || document == own || document == own.substr(own.rfind('/') + 1);
  if (!is_own) return std::nullopt;
  return text.substr(std::min(end + 1, text.size()));
}

// Whether `place` is inside of a schema with an $id of its own: references there are relative to that schema.
bool IsInsideOtherDocument(const JsonValue& place) {
  for (const JsonValue* at = place.parent; at != nullptr && at->parent != nullptr; at = at->parent) {
    const JsonValue* id = at->Find("$id");
    if (id != nullptr && id->is_string() && !id->text.starts_with("#")) return true;
  }
  return false;
}

// Schemas by their anchors: $anchor, or as drafts 4 to 7 write it, an $id "#name".
using Anchors = absl::flat_hash_map<std::string, const JsonValue*>;
void CollectAnchors(const JsonValue& schema, Anchors& anchors) {
  const JsonValue* anchor = schema.Find("$anchor");
  if (anchor != nullptr && anchor->is_string()) anchors.try_emplace(anchor->text, &schema);
  const JsonValue* id = IdOf(schema);
  const bool is_anchor = id != nullptr && id->text.starts_with("#");
  if (is_anchor) anchors.try_emplace(id->text.substr(1), &schema);
  if (id != nullptr && !is_anchor && schema.parent != nullptr) return;  // another document
  for (size_t i = 0; i < schema.items.size(); ++i) {
    const std::string_view key = schema.is_object() ? std::string_view(schema.keys[i]) : "";
    const bool is_value = key == "enum" || key == "const" || key == "default" || key == "examples";
    if (!is_value) CollectAnchors(schema.items[i], anchors);
  }
}

int64_t CountValues(const JsonValue& value) {
  int64_t count = 1;
  for (const JsonValue& item : value.items) count += CountValues(item);
  return count;
}

bool HasPart(const Conjunction& conjunction, const SchemaPart& part) {
  return std::find(conjunction.parts.begin(), conjunction.parts.end(), part) != conjunction.parts.end();
}

// Whether `keyword` stands before `other` in the source; also if `other` is missing.
bool ComesBefore(const JsonValue& schema, std::string_view keyword, std::string_view other) {
  for (const std::string& key : schema.keys) {
    if (key == keyword) return true;
    if (key == other) return false;
  }
  return false;
}

}  // namespace

absl::Status RefuseSchema(const JsonValue& place, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", JsonPointer(place), what));
}

SchemaReader::SchemaReader(const JsonValue& root, const GrammarLimits& limits, WorkCounter& work)
    : root_(root), limits_(limits), work_(work) {}

absl::StatusOr<const JsonValue*> SchemaReader::Resolve(const JsonValue& reference) {
  const auto fragment = FragmentOf(reference, root_);
  if (!fragment) {
    return RefuseSchema(reference,
                        "not supported, allowed a JSON pointer or an anchor of the same document (\"#...\")");
  }
  if (IsInsideOtherDocument(reference)) {
    return RefuseSchema(reference, "inside of a schema with an $id of its own: not supported, allowed none");
  }
  const std::string pointer = UnescapeUri(*fragment);
  const JsonValue* at = &root_;
  if (!pointer.empty() && pointer[0] != '/') {
    if (!anchors_) CollectAnchors(root_, anchors_.emplace());
    const auto anchor = anchors_->find(pointer);
    if (anchor != anchors_->end()) return anchor->second;
    return RefuseSchema(reference, "leads nowhere, allowed an anchor of the document");
  }
  for (size_t begin = 0; begin < pointer.size();) {
    const size_t end = std::min(pointer.find('/', begin + 1), pointer.size());
    std::string name = pointer.substr(begin + 1, end - begin - 1);
    name = absl::StrReplaceAll(absl::StrReplaceAll(name, {{"~1", "/"}}), {{"~0", "~"}});
    const JsonValue* next = at->Find(name);
    size_t index = 0;
    if (at->is_array() && absl::SimpleAtoi(name, &index) && index < at->items.size())
      next = &at->items[index];
    if (next == nullptr) return RefuseSchema(reference, "leads nowhere, allowed a schema of the document");
    at = next;
    begin = end;
  }
  return at;
}

absl::Status SchemaReader::Expand(const JsonValue& schema, Conjunction& conjunction) {
  if (!work_.Charge(1 + static_cast<int64_t>(conjunction.parts.size()))) return work_.status();
  if (schema.kind == JsonValue::kBoolean) {
    if (!schema.boolean) conjunction.never = &schema;
    return absl::OkStatus();
  }
  if (!schema.is_object()) return RefuseSchema(schema, "not a schema, allowed an object or a boolean");
  if (std::find(path_.begin(), path_.end(), &schema) != path_.end()) {
    return RefuseSchema(schema,
                        "refers to itself before any value, allowed a reference below properties or items");
  }
  if (HasPart(conjunction, {&schema})) return absl::OkStatus();
  if (path_.size() > 1000) return RefuseSchema(schema, "more than 1000 references in a row");
  path_.push_back(&schema);
  const absl::Status status = ExpandObject(schema, conjunction);
  path_.pop_back();
  return status;
}

absl::Status SchemaReader::ExpandObject(const JsonValue& schema, Conjunction& conjunction) {
  const JsonValue* reference = schema.Find("$ref");
  const JsonValue* all_of = schema.Find("allOf");
  // Properties come in the order of their appearance.
  const bool is_first =
      ComesBefore(schema, "properties", "$ref") && ComesBefore(schema, "properties", "allOf");
  if (is_first) conjunction.parts.push_back({&schema});
  if (reference != nullptr) {
    ASSIGN_OR_RETURN(const JsonValue* target, Resolve(*reference));
    RETURN_IF_ERROR(Expand(*target, conjunction));
  }
  if (all_of != nullptr) {
    if (!all_of->is_array()) return RefuseSchema(*all_of, "not a list, allowed a list of schemas");
    for (const JsonValue& item : all_of->items) RETURN_IF_ERROR(Expand(item, conjunction));
  }
  if (!is_first) conjunction.parts.push_back({&schema});
  for (const std::string_view keyword : RewrittenKeywords()) {
    if (schema.Find(keyword) == nullptr) continue;
    const JsonValue* rewrite = RewriteOf(schema, keyword);
    if (rewrite != nullptr) RETURN_IF_ERROR(Expand(*rewrite, conjunction));
  }
  return absl::OkStatus();
}

const JsonValue* SchemaReader::RewriteOf(const JsonValue& schema, std::string_view keyword) {
  const auto rewritten = RewrittenKeywords();
  if (std::find(rewritten.begin(), rewritten.end(), keyword) == rewritten.end()) return nullptr;
  const JsonValue& value = *schema.Find(keyword);
  const auto [place, is_new] = rewrites_.try_emplace(&value);
  if (!is_new) return place->second.get();
  const auto resolve = [&](const JsonValue& reference) -> const JsonValue* {
    const auto target = Resolve(reference);
    // References inside of a target would move to another document.
    return target.ok() && !IsInsideOtherDocument(**target) ? *target : nullptr;
  };
  work_.Charge(CountValues(value));
  std::optional<JsonValue> made = RewriteKeyword(schema, keyword, resolve);
  if (!made) return nullptr;
  work_.Charge(CountValues(*made));
  place->second = std::make_unique<JsonValue>(*std::move(made));
  SetParents(*place->second);
  place->second->parent = &value;
  return place->second.get();
}

absl::StatusOr<std::vector<Conjunction>> SchemaReader::Branches(const Conjunction& conjunction, int part) {
  const SchemaPart& chosen = conjunction.parts[part];
  const JsonValue* any_of = chosen.schema->Find("anyOf");
  const bool is_any = any_of != nullptr && !chosen.any_of_is_chosen;
  const JsonValue& list = is_any ? *any_of : *chosen.schema->Find("oneOf");
  if (!list.is_array() || list.items.empty())
    return RefuseSchema(list, "not a list, allowed a list of schemas");
  std::vector<Conjunction> branches;
  for (const JsonValue& item : list.items) {
    Conjunction branch = conjunction;
    SchemaPart done = chosen;
    (is_any ? done.any_of_is_chosen : done.one_of_is_chosen) = true;
    branch.parts.erase(branch.parts.begin() + part);
    if (!HasPart(branch, done)) branch.parts.insert(branch.parts.begin() + part, done);
    RETURN_IF_ERROR(Expand(item, branch));
    if (++branch_count_ > limits_.max_branches) {
      return RefuseSchema(list,
                          absl::StrCat("more than ", limits_.max_branches, " branches once all are merged"));
    }
    branches.push_back(std::move(branch));
  }
  if (!is_any) RETURN_IF_ERROR(SeparateOneOf(list, branches));
  return branches;
}

absl::Status SchemaReader::SeparateOneOf(const JsonValue& one_of, std::vector<Conjunction>& branches) {
  std::vector<std::pair<size_t, size_t>> overlapping;
  for (size_t b = 1; b < branches.size(); ++b) {
    for (size_t a = 0; a < b; ++a) {
      ASSIGN_OR_RETURN(const bool are_disjoint, AreDisjoint(branches[a], branches[b]));
      if (are_disjoint) continue;
      overlapping.insert(overlapping.end(), {{a, b}, {b, a}});
    }
  }
  for (const auto& [branch, other] : overlapping) {
    Overlap& overlap = overlaps_[{&one_of.items[branch], &one_of.items[other]}];
    if (overlap.schema == nullptr) {
      overlap = {std::make_unique<JsonValue>(NotSchema(one_of.items[other])), branch, other};
      SetParents(*overlap.schema);
      overlap.schema->parent = &one_of;
      work_.Charge(CountValues(*overlap.schema));
    }
    RETURN_IF_ERROR(Expand(*overlap.schema, branches[branch]));
  }
  return absl::OkStatus();
}

absl::Status SchemaReader::CheckNoOverlap(const JsonValue& schema) const {
  for (const JsonValue* at = &schema; at != nullptr; at = at->parent) {
    for (const auto& [branches, overlap] : overlaps_) {
      if (overlap.schema.get() != at) continue;
      return RefuseSchema(
          *at->parent,
          absl::StrFormat("branches %d and %d may both match, allowed disjoint branches or anyOf",
                          std::min(overlap.branch, overlap.other), std::max(overlap.branch, overlap.other)));
    }
  }
  return absl::OkStatus();
}

std::string SchemaReader::ExpressionOf(const JsonValue& pattern) {
  return IsFormat(pattern) ? *FormatExpression(pattern.text) : pattern.text;
}

absl::StatusOr<std::shared_ptr<StringSet>> SchemaReader::PatternSet(const JsonValue& place,
                                                                    std::string_view expression) {
  const auto known = pattern_sets_.find(expression);
  if (known != pattern_sets_.end()) return known->second;
  const auto regex = Regex::Parse(expression, Regex::kSearch, limits_.max_depth);
  if (!regex.ok()) return RefuseSchema(place, std::string(regex.status().message()));
  Ir ir(limits_);
  const RuleId root = ir.AddRule("pattern");
  ir.SetRule(root, regex->AddTo(ir, SpellRaw));
  ir.set_root(root);
  auto set = StringSet::Create(ir, regex->ends_anywhere());
  work_.Charge(ir.work().spent());
  if (!set.ok()) return RefuseSchema(place, std::string(set.status().message()));
  pattern_sets_.emplace(expression, *set);
  return *set;
}

absl::StatusOr<std::vector<StringTest>> SchemaReader::StringTests(const MergedSchema& merged,
                                                                  bool has_short_formats) {
  std::vector<StringTest> tests;
  for (const JsonValue* pattern : merged.patterns) {
    std::optional<std::string> expression;
    if (has_short_formats && IsFormat(*pattern)) expression = ShortFormatExpression(pattern->text);
    for (const RegexTest& test : SplitLookAheads(expression ? *expression : ExpressionOf(*pattern))) {
      ASSIGN_OR_RETURN(const auto set, PatternSet(*pattern, test.expression));
      tests.push_back({set, test.is_member});
    }
  }
  for (const JsonValue* excluded : merged.excluded) {
    if (excluded->is_string()) {
      ASSIGN_OR_RETURN(const auto set, PatternOf(*excluded));
      tests.push_back({set, false});
    } else if (!excluded->items.empty()) {
      std::vector<std::string> texts;
      for (const JsonValue& item : excluded->items) texts.push_back(item.text);
      ASSIGN_OR_RETURN(const auto set, StringSet::OfTexts(texts, limits_, work_));
      tests.push_back({set, false});
    }
  }
  return tests;
}

absl::StatusOr<Conjunction> SchemaReader::PropertyOf(const Conjunction& conjunction,
                                                     const std::string& name) {
  Conjunction result;
  for (const SchemaPart& part : conjunction.parts) {
    const JsonValue* properties = part.schema->Find("properties");
    const JsonValue* declared = properties == nullptr ? nullptr : properties->Find(name);
    bool is_known = declared != nullptr;
    if (is_known) RETURN_IF_ERROR(Expand(*declared, result));
    if (const JsonValue* patterns = part.schema->Find("patternProperties"); patterns != nullptr) {
      for (size_t i = 0; i < patterns->keys.size(); ++i) {
        ASSIGN_OR_RETURN(const auto set, PatternSet(patterns->items[i], patterns->keys[i]));
        ASSIGN_OR_RETURN(const bool matches, set->Has(name));
        if (matches) RETURN_IF_ERROR(Expand(patterns->items[i], result));
        is_known = is_known || matches;
      }
    }
    const JsonValue* additional = part.schema->Find("additionalProperties");
    if (!is_known && additional != nullptr) RETURN_IF_ERROR(Expand(*additional, result));
  }
  return result;
}

absl::StatusOr<Conjunction> SchemaReader::OthersOf(const Conjunction& conjunction,
                                                   const std::vector<std::string>& matched) {
  Conjunction result;
  for (const SchemaPart& part : conjunction.parts) {
    bool is_known = false;
    if (const JsonValue* patterns = part.schema->Find("patternProperties"); patterns != nullptr) {
      for (size_t i = 0; i < patterns->keys.size(); ++i) {
        if (std::find(matched.begin(), matched.end(), patterns->keys[i]) == matched.end()) continue;
        is_known = true;
        RETURN_IF_ERROR(Expand(patterns->items[i], result));
      }
    }
    const JsonValue* additional = part.schema->Find("additionalProperties");
    if (!is_known && additional != nullptr) RETURN_IF_ERROR(Expand(*additional, result));
  }
  return result;
}

namespace {

// The list of schemas of the first elements, and the schema of the others; nullptr where there is none. Draft
// 2020-12 writes prefixItems and items, earlier drafts a list in items, and additionalItems.
struct ItemSchemas {
  const JsonValue* prefix = nullptr;
  const JsonValue* others = nullptr;

  explicit ItemSchemas(const JsonValue& schema) {
    prefix = schema.Find("prefixItems");
    others = schema.Find("items");
    if (prefix == nullptr && others != nullptr && others->is_array()) {
      prefix = std::exchange(others, schema.Find("additionalItems"));
    }
    if (prefix != nullptr && !prefix->is_array()) prefix = nullptr;
  }
};

}  // namespace

absl::StatusOr<Conjunction> SchemaReader::ItemOf(const Conjunction& conjunction, size_t index) {
  Conjunction result;
  for (const SchemaPart& part : conjunction.parts) {
    const ItemSchemas items(*part.schema);
    if (items.prefix != nullptr && index < items.prefix->items.size()) {
      RETURN_IF_ERROR(Expand(items.prefix->items[index], result));
    } else if (items.others != nullptr) {
      RETURN_IF_ERROR(Expand(*items.others, result));
    }
  }
  return result;
}

size_t SchemaReader::PrefixCount(const Conjunction& conjunction) {
  size_t count = 0;
  for (const SchemaPart& part : conjunction.parts) {
    const ItemSchemas items(*part.schema);
    if (items.prefix != nullptr) count = std::max(count, items.prefix->items.size());
  }
  return count;
}

}  // namespace foredraft
