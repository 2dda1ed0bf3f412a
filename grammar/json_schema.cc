#include "grammar/json_schema.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "grammar/json_formats.h"
#include "grammar/json_strings.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"

namespace foredraft {
namespace {

constexpr int kMaxSpaces = 32;
constexpr int kMaxTabs = 8;

// Nothing, one space, or a line end with an indentation: bounded, because models fall into endless white
// space.
NodeId AddSpace(Ir& ir) {
  const NodeId indentation =
      ir.Alternative({ir.Repeat(ir.Literal(" "), 0, kMaxSpaces), ir.Repeat(ir.Literal("\t"), 1, kMaxTabs)});
  return ir.Optional(ir.Alternative({ir.Literal(" "), ir.Sequence({ir.Literal("\n"), indentation})}));
}

}  // namespace

absl::StatusOr<NodeId> AddJsonSchema(Ir& ir, const JsonValue& schema, const JsonStyle& style) {
  SchemaCompiler compiler(ir, schema, style);
  ASSIGN_OR_RETURN(const RuleId rule, compiler.Compile());
  return ir.Call(rule);
}

absl::StatusOr<NodeId> AddJsonSchema(Ir& ir, std::string_view schema, const JsonStyle& style) {
  ASSIGN_OR_RETURN(const auto root, ParseJsonSource(schema, ir.limits().max_depth));
  return AddJsonSchema(ir, *root, style);
}

SchemaCompiler::SchemaCompiler(Ir& ir, const JsonValue& root, const JsonStyle& style)
    : ir_(ir), root_(root), reader_(root, ir.limits(), ir.work()) {
  if (style.compact) {
    space_ = ir.Empty();
  } else {
    space_rule_ = ir.AddRule("white space");
    ir.SetRule(space_rule_, AddSpace(ir));
    space_ = ir.Call(space_rule_);
  }
  separator_ = ir.Sequence({space_, ir.Literal(","), space_});
}

absl::StatusOr<RuleId> SchemaCompiler::Compile() {
  Conjunction all;
  RETURN_IF_ERROR(reader_.Expand(root_, all));
  const RuleId root = RuleOf(all, root_);
  RETURN_IF_ERROR(CompilePending());
  return root;
}

absl::StatusOr<NodeId> SchemaCompiler::CompileValue(const Conjunction& conjunction) {
  const RuleId rule = RuleOf(conjunction, root_);
  RETURN_IF_ERROR(CompilePending());
  return ir_.Call(rule);
}

absl::Status SchemaCompiler::CompilePending() {
  while (!pending_.empty()) {
    const Pending next = std::move(pending_.back());
    pending_.pop_back();
    ASSIGN_OR_RETURN(const NodeId body, Body(next.conjunction, next.place));
    RETURN_IF_ERROR(ir_.status());
    ir_.SetRule(next.rule, body);
  }
  return absl::OkStatus();
}

RuleId SchemaCompiler::RuleOf(const Conjunction& conjunction, const JsonValue& place) {
  const std::string name = JsonPointer(conjunction.never != nullptr ? *conjunction.never
                                       : conjunction.parts.empty()  ? place
                                                                    : *conjunction.parts[0].schema);
  const auto [entry, is_new] = rules_.try_emplace({conjunction.parts, conjunction.never != nullptr}, 0);
  if (is_new) {
    entry->second = ir_.AddRule(name);
    pending_.push_back({entry->second, conjunction, name});
  }
  return entry->second;
}

absl::StatusOr<NodeId> SchemaCompiler::Body(const Conjunction& conjunction, const std::string& place) {
  if (conjunction.never != nullptr) return ir_.Never();
  ASSIGN_OR_RETURN(const MergedSchema merged, reader_.Merge(conjunction));
  if (merged.types == 0) return ir_.Never();
  if (merged.values != nullptr) return Values(conjunction, *merged.values);
  if (merged.branching_part >= 0) return Branch(conjunction, merged.branching_part, place);
  std::vector<NodeId> choices;
  if (merged.types & kNullType) choices.push_back(ir_.Literal("null"));
  if (merged.types & kBooleanType) {
    choices.push_back(ir_.Literal("true"));
    choices.push_back(ir_.Literal("false"));
  }
  if (merged.types & (kIntegerType | kFractionType)) {
    ASSIGN_OR_RETURN(const NodeId numbers, Number(merged.numbers, place));
    choices.push_back(numbers);
  }
  if (merged.types & kStringType) {
    ASSIGN_OR_RETURN(const NodeId strings, String(merged));
    choices.push_back(strings);
  }
  if (merged.types & kArrayType) {
    ASSIGN_OR_RETURN(const NodeId arrays, Array(conjunction, merged));
    choices.push_back(Nested(arrays, place));
  }
  if (merged.types & kObjectType) {
    ASSIGN_OR_RETURN(const NodeId objects, Object(conjunction, merged));
    choices.push_back(Nested(objects, place));
  }
  return ir_.Alternative(choices);
}

NodeId SchemaCompiler::Nested(NodeId body, std::string name) {
  const RuleId rule = ir_.AddRule(std::move(name));
  ir_.SetRule(rule, body);
  return ir_.NestedCall(rule);
}

absl::StatusOr<NodeId> SchemaCompiler::Branch(const Conjunction& conjunction, int part, const std::string&) {
  ASSIGN_OR_RETURN(const auto branches, reader_.Branches(conjunction, part));
  std::vector<NodeId> choices;
  for (const Conjunction& branch : branches) {
    if (branch.never != nullptr) continue;
    choices.push_back(ir_.Call(RuleOf(branch, *conjunction.parts[part].schema)));
  }
  return ir_.Alternative(choices);
}

NodeId SchemaCompiler::Value(const JsonValue& value) {
  switch (value.kind) {
    case JsonValue::kNull:
      return ir_.Literal("null");
    case JsonValue::kBoolean:
      return ir_.Literal(value.boolean ? "true" : "false");
    case JsonValue::kNumber:
      return ir_.Literal(value.text);
    case JsonValue::kString:
      return ir_.Literal(QuoteJson(value.text));
    case JsonValue::kArray:
    case JsonValue::kObject:
      break;
  }
  std::vector<NodeId> parts = {ir_.Literal(value.is_array() ? "[" : "{"), space_};
  for (size_t i = 0; i < value.items.size(); ++i) {
    if (i > 0) parts.push_back(separator_);
    if (value.is_object()) {
      parts.insert(parts.end(), {ir_.Literal(QuoteJson(value.keys[i])), space_, ir_.Literal(":"), space_});
    }
    parts.push_back(Value(value.items[i]));
  }
  if (!value.items.empty()) parts.push_back(space_);
  parts.push_back(ir_.Literal(value.is_array() ? "]" : "}"));
  return ir_.Sequence(parts);
}

absl::StatusOr<NodeId> SchemaCompiler::Values(const Conjunction& conjunction, const JsonValue& values) {
  ASSIGN_OR_RETURN(const auto valid, reader_.ValuesOf(conjunction, values));
  std::vector<std::string> scalars;
  std::vector<NodeId> choices;
  for (const JsonValue* value : valid) {
    if (value->is_array() || value->is_object()) {
      choices.push_back(Nested(Value(*value), JsonPointer(*value)));
    } else {
      const std::string_view word = value->kind == JsonValue::kNull ? "null"
                                    : value->boolean                ? "true"
                                                                    : "false";
      scalars.push_back(value->is_string()   ? QuoteJson(value->text)
                        : value->is_number() ? value->text
                                             : std::string(word));
    }
  }
  if (!scalars.empty()) choices.push_back(ir_.OneOf(scalars));
  return ir_.Alternative(choices);
}

NodeId SchemaCompiler::CallShared(RuleId& rule, std::string_view name, const std::function<NodeId()>& body) {
  if (rule < 0) {
    rule = ir_.AddRule(std::string(name));
    ir_.SetRule(rule, body());
  }
  return ir_.Call(rule);
}

absl::StatusOr<NodeId> SchemaCompiler::Number(const NumberRange& range, const std::string& place) {
  const auto add = [&] { return AddNumbers(ir_, range); };
  const bool is_plain = !range.min && !range.max && !range.is_fraction && range.divisor == 1 &&
                        range.places == NumberRange::kMaxPlaces;
  if (is_plain) {
    return CallShared(range.is_integer ? integer_ : number_, "a number", [&] { return *add(); });
  }
  const auto numbers = add();
  if (!numbers.ok()) return absl::InvalidArgumentError(absl::StrCat(place, ": ", numbers.status().message()));
  return numbers;
}

NodeId SchemaCompiler::AnyString(int64_t min_length, int64_t max_length) {
  const NodeId quote = ir_.Literal("\"");
  if (min_length == 0 && max_length < 0) {
    return CallShared(string_, "a string", [&] {
      return ir_.Sequence({quote, ir_.Repeat(AnyJsonChar(ir_), 0, -1), quote});
    });
  }
  const NodeId any_char = CallShared(string_char_, "a character", [&] { return AnyJsonChar(ir_); });
  const NodeId inside =
      ir_.Repeat(any_char, static_cast<int32_t>(min_length), static_cast<int32_t>(max_length));
  return ir_.Sequence({quote, inside, quote});
}

std::string SchemaCompiler::TogetherNeed(const MergedSchema& merged) {
  const auto formats = std::count_if(merged.patterns.begin(), merged.patterns.end(),
                                     [](const JsonValue* p) { return SchemaReader::IsFormat(*p); });
  std::vector<std::string> keywords;
  if (formats < static_cast<std::ptrdiff_t>(merged.patterns.size())) keywords.emplace_back("pattern");
  if (formats > 0) keywords.emplace_back("format");
  if (!merged.excluded.empty()) keywords.emplace_back("not");
  if (merged.min_length > 0) keywords.emplace_back("minLength");
  if (merged.max_length >= 0) keywords.emplace_back("maxLength");
  return absl::StrCat(absl::StrJoin(keywords, " and "), keywords.size() > 1 ? " together need" : " need");
}

absl::StatusOr<NodeId> SchemaCompiler::OfPattern(const MergedSchema& merged) {
  const JsonValue& pattern = *merged.patterns[0];
  const std::string expression = SchemaReader::ExpressionOf(pattern);
  const auto [known, is_new] = pattern_rules_.try_emplace(expression, -1);
  if (!is_new) return ir_.Call(known->second);
  const auto regex = Regex::Parse(expression, Regex::kSearch, ir_.limits().max_depth);
  if (!regex.ok()) return RefuseSchema(pattern, std::string(regex.status().message()));
  std::optional<NodeId> inside;
  if (regex->begins_anywhere()) {
    // Without a product, a search has a configuration for each place where a match may have begun.
    constexpr int32_t kMaxSearchStates = 500;
    ASSIGN_OR_RETURN(const auto tests, reader_.StringTests(merged));
    const auto made =
        AddStringProduct(ir_, tests, 0, -1, TogetherNeed(merged), StringSpelling::kJson, kMaxSearchStates);
    if (made.ok()) inside = *made;
  }
  if (!inside) inside = regex->AddTo(ir_, SpellJson);
  const NodeId quote = ir_.Literal("\"");
  known->second = ir_.AddRule(JsonPointer(pattern));
  ir_.SetRule(known->second, ir_.Sequence({quote, *inside, quote}));
  return ir_.Call(known->second);
}

absl::StatusOr<NodeId> SchemaCompiler::String(const MergedSchema& merged) {
  const NodeId quote = ir_.Literal("\"");
  const bool has_length = merged.min_length > 0 || merged.max_length >= 0;
  if (merged.max_length >= 0 && merged.min_length > merged.max_length) return ir_.Never();
  if (merged.patterns.empty() && merged.excluded.empty()) {
    return AnyString(merged.min_length, merged.max_length);
  }
  const JsonValue& first = merged.patterns.empty() ? *merged.excluded[0] : *merged.patterns[0];
  const bool is_one_test = merged.patterns.size() == 1 && merged.excluded.empty() && !has_length &&
                           SplitLookAheads(SchemaReader::ExpressionOf(first)).size() == 1;
  if (is_one_test) return OfPattern(merged);
  if (merged.patterns.size() == 1 && merged.excluded.empty() && SchemaReader::IsFormat(first)) {
    const auto bounded = BoundedFormatExpression(first.text, merged.min_length, merged.max_length);
    if (bounded) {
      ASSIGN_OR_RETURN(const Regex regex, Regex::Parse(*bounded, Regex::kSearch, ir_.limits().max_depth));
      return ir_.Sequence({quote, regex.AddTo(ir_, SpellJson), quote});
    }
  }
  const bool is_short = merged.max_length >= 0 && merged.min_length <= kShortFormatChars &&
                        std::any_of(merged.patterns.begin(), merged.patterns.end(), [](const JsonValue* p) {
                          return SchemaReader::IsFormat(*p) && ShortFormatExpression(p->text);
                        });
  ASSIGN_OR_RETURN(const auto tests, reader_.StringTests(merged, is_short));
  const int64_t max_length = is_short ? std::min(merged.max_length, kShortFormatChars) : merged.max_length;
  const auto inside = AddStringProduct(ir_, tests, merged.min_length, max_length, TogetherNeed(merged));
  if (!inside.ok()) return RefuseSchema(first, std::string(inside.status().message()));
  return ir_.Sequence({quote, *inside, quote});
}

NodeId SchemaCompiler::List(NodeId item, NodeId separator, int64_t min, int64_t max) {
  const NodeId more = ir_.Sequence({separator, item});
  const int64_t others_min = std::max<int64_t>(min - 1, 0);
  const int64_t others_max = max < 0 ? -1 : max - 1;
  const NodeId others = ir_.Repeat(more, static_cast<int32_t>(others_min), static_cast<int32_t>(others_max));
  return ir_.Sequence({item, others});
}

NodeId SchemaCompiler::ArrayOfEach(const std::vector<const JsonValue*>& values, int64_t min, int64_t max) {
  std::vector<NodeId> items;
  for (const JsonValue* value : values) {
    const RuleId rule = ir_.AddRule("an element");
    ir_.SetRule(rule, Value(*value));
    items.push_back(value->is_array() || value->is_object() ? ir_.NestedCall(rule) : ir_.Call(rule));
  }
  NodeGraph graph;
  const int32_t start = graph.AddState(), end = graph.AddState();
  graph.states[end].accepts = true;
  const uint32_t sets = uint32_t{1} << values.size();
  // after(set): the state after the values of the set. next(set): the state where another value must come.
  const auto after = [](uint32_t set) { return static_cast<int32_t>(2 + 2 * set); };
  const auto next = [&](uint32_t set) { return after(set) + 1; };
  for (uint32_t set = 0; set < 2 * sets; ++set) graph.AddState();
  graph.AddEdge(start, ir_.Sequence({ir_.Literal("["), space_}), after(0));
  const NodeId close = ir_.Literal("]"), spaced_close = ir_.Sequence({space_, close});
  for (uint32_t set = 0; set < sets; ++set) {
    const int64_t count = std::popcount(set);
    if (count >= min) graph.AddEdge(after(set), set == 0 ? close : spaced_close, end);
    if (count == max) continue;
    graph.AddEdge(after(set), set == 0 ? NodeGraph::kEmptyLabel : separator_, next(set));
    for (size_t i = 0; i < items.size(); ++i) {
      const uint32_t with = set | uint32_t{1} << i;
      if (with != set) graph.AddEdge(next(set), items[i], after(with));
    }
  }
  return ir_.Graph(std::move(graph));
}

absl::StatusOr<NodeId> SchemaCompiler::UniqueArray(const Conjunction& conjunction,
                                                   const MergedSchema& merged) {
  constexpr size_t kMaxValues = 10;
  ASSIGN_OR_RETURN(const Conjunction item, reader_.ItemOf(conjunction, 0));
  ASSIGN_OR_RETURN(const auto values, reader_.FewValues(item));
  if (!values || values->size() > kMaxValues || SchemaReader::PrefixCount(conjunction) > 0) {
    return RefuseSchema(*merged.unique_items,
                        absl::StrCat("not supported here, allowed where all items are of the same at most ",
                                     kMaxValues, " values, or maxItems is 1"));
  }
  return ArrayOfEach(*values, merged.min_items, merged.max_items);
}

absl::StatusOr<NodeId> SchemaCompiler::Array(const Conjunction& conjunction, const MergedSchema& merged) {
  const int64_t prefix = static_cast<int64_t>(SchemaReader::PrefixCount(conjunction));
  int64_t max = merged.max_items;
  if (merged.unique_items != nullptr && (max < 0 || max > 1)) return UniqueArray(conjunction, merged);
  std::vector<NodeId> items;  // of the first elements one by one, then of all others
  for (int64_t i = 0; i <= prefix; ++i) {
    ASSIGN_OR_RETURN(const Conjunction item, reader_.ItemOf(conjunction, static_cast<size_t>(i)));
    if (item.never != nullptr) max = max < 0 ? i : std::min(max, i);
    items.push_back(ir_.Call(RuleOf(item, Place(conjunction))));
  }
  if (max >= 0 && merged.min_items > max) return ir_.Never();
  NodeGraph graph;
  const int32_t start = graph.AddState(), end = graph.AddState();
  graph.states[end].accepts = true;
  const NodeId close = ir_.Literal("]"), spaced_close = ir_.Sequence({space_, close});
  int32_t at = graph.AddState();
  graph.AddEdge(start, ir_.Sequence({ir_.Literal("["), space_}), at);
  for (int64_t count = 0;; ++count) {
    // `at` has read `count` elements.
    if (count >= merged.min_items) graph.AddEdge(at, count == 0 ? close : spaced_close, end);
    if (count == max) break;
    const NodeId item = items[std::min(count, prefix)];
    const int32_t next = graph.AddState();
    if (count >= prefix) {
      const int64_t least = std::max<int64_t>(merged.min_items - count, 1);
      const NodeId list = List(item, separator_, least, max < 0 ? -1 : max - count);
      graph.AddEdge(at, count == 0 ? list : ir_.Sequence({separator_, list}), next);
      graph.AddEdge(next, spaced_close, end);
      break;
    }
    graph.AddEdge(at, count == 0 ? item : ir_.Sequence({separator_, item}), next);
    at = next;
  }
  return ir_.Graph(std::move(graph));
}

}  // namespace foredraft
