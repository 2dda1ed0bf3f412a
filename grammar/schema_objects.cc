// Compiles the objects of a schema.

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "grammar/json_strings.h"
#include "grammar/regex.h"
#include "grammar/schema_compiler.h"

namespace foredraft {
namespace {

constexpr int64_t kMaxCounted = 2'000;  // limit of declared properties times counted members

}  // namespace

NodeId SchemaCompiler::Member(NodeId key, RuleId value) {
  return ir_.Sequence({key, space_, ir_.Literal(":"), space_, ir_.Call(value)});
}

absl::StatusOr<NodeId> SchemaCompiler::OtherKeys(const MergedSchema& merged,
                                                 const std::vector<std::string>& patterns,
                                                 const std::vector<std::string>& matched,
                                                 const JsonValue* place) {
  const NodeId quote = ir_.Literal("\"");
  std::vector<StringTest> tests;
  for (const std::string& pattern : patterns) {
    const bool is_member = std::find(matched.begin(), matched.end(), pattern) != matched.end();
    ASSIGN_OR_RETURN(const auto set, reader_.PatternSet(*place, pattern));
    tests.push_back({set, is_member});
  }
  if (!merged.names.empty()) {
    ASSIGN_OR_RETURN(const auto set, StringSet::OfTexts(merged.names, ir_.limits(), ir_.work()));
    tests.push_back({set, false});
  }
  if (tests.empty()) {
    return ir_.Sequence({ir_.Repeat(SpellJson(ir_, CharSet::All()), 0, -1), quote});
  }
  ASSIGN_OR_RETURN(const NodeId inside,
                   AddStringProduct(ir_, tests, 0, -1, "the names of properties and patterns need"));
  return ir_.Sequence({inside, quote});
}

absl::StatusOr<NodeId> SchemaCompiler::OtherMember(const Conjunction& conjunction,
                                                   const MergedSchema& merged) {
  std::vector<std::string> patterns;
  const JsonValue* place = nullptr;
  for (const JsonValue* object : merged.key_patterns) {
    for (size_t i = 0; i < object->keys.size(); ++i) {
      if (std::find(patterns.begin(), patterns.end(), object->keys[i]) != patterns.end()) continue;
      patterns.push_back(object->keys[i]);
      place = &object->items[i];
    }
  }
  constexpr size_t kMaxPatterns = 4;
  if (patterns.size() > kMaxPatterns) {
    return RefuseSchema(*place->parent,
                        absl::StrCat(patterns.size(), " patterns, allowed at most ", kMaxPatterns));
  }
  std::vector<NodeId> choices;
  for (uint32_t subset = 0; subset < (1u << patterns.size()); ++subset) {
    std::vector<std::string> matched;
    for (size_t p = 0; p < patterns.size(); ++p) {
      if (subset >> p & 1) matched.push_back(patterns[p]);
    }
    ASSIGN_OR_RETURN(const Conjunction value, reader_.OthersOf(conjunction, matched));
    if (value.never != nullptr) continue;
    const auto keys = OtherKeys(merged, patterns, matched, place);
    if (!keys.ok())
      return place == nullptr ? keys.status() : RefuseSchema(*place, std::string(keys.status().message()));
    choices.push_back(Member(*keys, RuleOf(value, Place(conjunction))));
  }
  return ir_.Alternative(choices);
}

// Refuses `keyword` in the part where its value is `count`.
absl::Status SchemaCompiler::RefuseCount(const Conjunction& conjunction, const char* keyword, int64_t count,
                                         const std::string& reason) {
  const JsonValue* place = nullptr;
  for (const SchemaPart& part : conjunction.parts) {
    const JsonValue* value = part.schema->Find(keyword);
    if (value == nullptr) continue;
    if (place == nullptr || absl::StrCat(count) == value->text) place = value;
  }
  return RefuseSchema(*place, absl::StrCat(count, reason));
}

absl::StatusOr<SchemaCompiler::OtherCount> SchemaCompiler::CountOthers(const Conjunction& conjunction,
                                                                       const MergedSchema& merged,
                                                                       bool has_others) {
  OtherCount count;
  const int64_t declared = static_cast<int64_t>(merged.names.size());
  const int64_t required = std::count(merged.is_required.begin(), merged.is_required.end(), true);
  const int64_t min = merged.min_properties, max = merged.max_properties;
  if (!has_others) count.max = 0;
  count.may_be_empty_object = required == 0 && min == 0;
  if (required == declared) {
    count.min = std::max<int64_t>(min - declared, 0);
    if (max >= 0) count.max = has_others ? max - declared : std::min<int64_t>(0, max - declared);
    // Undeclared keys may repeat, and a repeated key is one property: only a minimum of one such key can be
    // enforced.
    if (count.min > 1 && has_others && (count.max < 0 || count.min <= count.max)) {
      return RefuseCount(
          conjunction, "minProperties", min,
          absl::StrCat(", but keys that are not declared may repeat each other, allowed at most ",
                       declared + 1));
    }
    return count;
  }
  if (has_others && min > std::max<int64_t>(required, 1)) {
    return RefuseCount(conjunction, "minProperties", min,
                       absl::StrCat(" beside optional properties and others, which may repeat each other, "
                                    "allowed at most ",
                                    std::max<int64_t>(required, 1)));
  }
  const bool has_max = max >= 0 && (has_others || max < declared);
  if (!has_max && min <= std::max<int64_t>(required, 1)) return count;
  count.counted = has_max ? max : min;
  if (declared * count.counted > kMaxCounted) {
    return RefuseCount(conjunction, has_max ? "maxProperties" : "minProperties", count.counted,
                       absl::StrCat(" beside ", declared, " properties, allowed ", kMaxCounted / declared,
                                    " beside so many"));
  }
  return count;
}

absl::StatusOr<std::vector<NodeId>> SchemaCompiler::DeclaredMembers(const Conjunction& conjunction,
                                                                    const MergedSchema& merged) {
  std::vector<NodeId> members;
  for (size_t i = 0; i < merged.names.size(); ++i) {
    ASSIGN_OR_RETURN(const Conjunction value, reader_.PropertyOf(conjunction, merged.names[i]));
    const NodeId key = ir_.Literal(QuoteJson(merged.names[i]).substr(1));
    const bool may_come = value.never == nullptr || merged.is_required[i];
    members.push_back(may_come ? Member(key, RuleOf(value, Place(conjunction))) : ir_.Never());
  }
  return members;
}

absl::StatusOr<NodeId> SchemaCompiler::Object(const Conjunction& conjunction, const MergedSchema& merged) {
  if (merged.max_properties == 0) {
    const bool needs_some = merged.min_properties > 0 ||
                            std::count(merged.is_required.begin(), merged.is_required.end(), true) > 0;
    return needs_some ? ir_.Never() : ir_.Sequence({ir_.Literal("{"), space_, ir_.Literal("}")});
  }
  ASSIGN_OR_RETURN(const NodeId other, OtherMember(conjunction, merged));
  const bool has_others = ir_.node(other).kind != IrNode::kNever;
  ASSIGN_OR_RETURN(const OtherCount others, CountOthers(conjunction, merged, has_others));
  if (others.max >= 0 && others.min > others.max) return ir_.Never();
  const size_t count = merged.names.size();
  const size_t last_required =  // one past the last required property
      std::find(merged.is_required.rbegin(), merged.is_required.rend(), true).base() -
      merged.is_required.begin();
  NodeGraph graph;
  const int32_t start = graph.AddState(), end = graph.AddState();
  graph.states[end].accepts = true;
  const NodeId spaced_close = ir_.Sequence({space_, ir_.Literal("}")});
  // n: members counted so far. choices(i, n): the state after the first quote of a key, where the member is i
  // or a later one. The quote and the white space before it have states of their own, which members share.
  // after(i, n): the state after at least one member, all of them before i.
  const int64_t counted = others.counted;
  const bool has_end = counted > 0 && counted == merged.max_properties;
  const auto choices = [&](size_t i, int64_t n) {
    return static_cast<int32_t>(2 + 2 * (n * static_cast<int64_t>(count + 1) + static_cast<int64_t>(i)));
  };
  const auto after = [&](size_t i, int64_t n) { return choices(i, n) + 1; };
  while (graph.states.size() < static_cast<size_t>(choices(0, counted + 1))) graph.AddState();
  const NodeId quote = ir_.Literal("\"");
  const NodeId next_member = ir_.Sequence({separator_, quote});
  graph.AddEdge(start, ir_.Sequence({ir_.Literal("{"), space_, quote}), choices(0, 0));
  if (others.may_be_empty_object) {
    graph.AddEdge(start, ir_.Sequence({ir_.Literal("{"), space_, ir_.Literal("}")}), end);
  }
  ASSIGN_OR_RETURN(const auto members, DeclaredMembers(conjunction, merged));
  for (int64_t n = 0; n <= counted; ++n) {
    const bool may_go_on = !has_end || n < counted;
    for (size_t i = 0; i < count; ++i) {
      if (may_go_on) graph.AddEdge(choices(i, n), members[i], after(i + 1, std::min(n + 1, counted)));
      if (!merged.is_required[i]) graph.AddEdge(choices(i, n), NodeGraph::kEmptyLabel, choices(i + 1, n));
    }
    for (size_t i = 1; i <= count; ++i) {
      if (may_go_on && (i < count || others.max != 0)) graph.AddEdge(after(i, n), next_member, choices(i, n));
      const bool are_enough = counted == 0 ? others.min == 0 : n >= merged.min_properties;
      if (i >= last_required && are_enough) graph.AddEdge(after(i, n), spaced_close, end);
    }
    if (others.max == 0 || !may_go_on) continue;
    const int32_t last = graph.AddState();
    const int64_t most = has_end ? counted - n : others.max;
    graph.AddEdge(choices(count, n), List(other, next_member, std::max<int64_t>(others.min, 1), most), last);
    graph.AddEdge(last, spaced_close, end);
  }
  return ir_.Graph(std::move(graph));
}

}  // namespace foredraft
