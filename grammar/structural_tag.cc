#include "grammar/structural_tag.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "grammar/char_set.h"
#include "grammar/gbnf.h"
#include "grammar/json_source.h"
#include "grammar/marked_text.h"
#include "grammar/regex.h"
#include "grammar/schema_reader.h"
#include "grammar/xml_parameters.h"

namespace foredraft {
namespace {

class TagCompiler {
 public:
  TagCompiler(Ir& ir, const Vocabulary& vocabulary, const JsonStyle& style, bool free_until_trigger)
      : ir_(ir), vocabulary_(vocabulary), style_(style), free_until_trigger_(free_until_trigger) {}

  absl::StatusOr<StructuralTag> Compile(const JsonValue& root) {
    const JsonValue* format = root.Find("format");
    root_ = format != nullptr && format->is_object() ? format : &root;
    StructuralTag made;
    if (root.Find("structures") != nullptr) {
      root_ = &root;
      ASSIGN_OR_RETURN(made.node, CompileOld(root));
    } else {
      ASSIGN_OR_RETURN(made.node, Format(*root_, {}));
    }
    made.trigger_ids = std::move(trigger_ids_);
    return made;
  }

 private:
  using Ends = std::vector<std::string>;  // of the enclosing tag; free text inside contains none
  struct Tag {
    std::string begin;
    NodeId content;
    NodeId end;
  };

  absl::StatusOr<const JsonValue*> Member(const JsonValue& format, std::string_view name,
                                          JsonValue::Kind kind) {
    const JsonValue* value = format.Find(name);
    if (value != nullptr && value->kind == kind) return value;
    static constexpr const char* kKinds[] = {"null",     "a boolean", "a number",
                                             "a string", "a list",    "an object"};
    return RefuseSchema(
        format, absl::StrFormat("\"%s\" is missing or of another type, allowed %s", name, kKinds[kind]));
  }
  absl::StatusOr<bool> Flag(const JsonValue& format, std::string_view name) {
    if (format.Find(name) == nullptr) return false;
    ASSIGN_OR_RETURN(const JsonValue* value, Member(format, name, JsonValue::kBoolean));
    return value->boolean;
  }
  absl::StatusOr<std::vector<std::string>> Strings(const JsonValue& format, std::string_view name) {
    std::vector<std::string> strings;
    const JsonValue* value = format.Find(name);
    if (value == nullptr || value->kind == JsonValue::kNull) return strings;
    if (value->is_string()) return std::vector<std::string>{value->text};
    ASSIGN_OR_RETURN(value, Member(format, name, JsonValue::kArray));
    for (const JsonValue& item : value->items) {
      if (!item.is_string()) return RefuseSchema(item, "not a string, allowed a string");
      strings.push_back(item.text);
    }
    return strings;
  }
  absl::Status RefuseFields(const JsonValue& format) {
    for (const std::string_view name : {"max_tokens", "max_chars", "any_order"}) {
      const JsonValue* value = format.Find(name);
      if (value == nullptr || value->kind == JsonValue::kNull) continue;
      if (value->kind == JsonValue::kBoolean && !value->boolean) continue;
      return RefuseSchema(*value, "not supported, allowed a format without it");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<NodeId> Format(const JsonValue& format, const Ends& ends) {
    RETURN_IF_ERROR(ir_.status());
    ASSIGN_OR_RETURN(const JsonValue* type, Member(format, "type", JsonValue::kString));
    RETURN_IF_ERROR(RefuseFields(format));
    const std::string& name = type->text;
    if (name == "const_string") {
      ASSIGN_OR_RETURN(const JsonValue* value, Member(format, "value", JsonValue::kString));
      return AddMarkedLiteral(ir_, value->text, vocabulary_);
    }
    if (name == "json_schema") return Schema(format);
    if (name == "grammar") {
      ASSIGN_OR_RETURN(const JsonValue* grammar, Member(format, "grammar", JsonValue::kString));
      auto node = AddGbnf(ir_, grammar->text, vocabulary_);
      return node.ok() ? node : RefuseSchema(*grammar, std::string(node.status().message()));
    }
    if (name == "regex") {
      ASSIGN_OR_RETURN(const JsonValue* pattern, Member(format, "pattern", JsonValue::kString));
      const auto regex = Regex::Parse(pattern->text, Regex::kWhole, ir_.limits().max_depth);
      if (!regex.ok()) return RefuseSchema(*pattern, std::string(regex.status().message()));
      return regex->AddTo(ir_, SpellRaw);
    }
    if (name == "any_text") {
      ASSIGN_OR_RETURN(std::vector<std::string> excluded, Strings(format, "excludes"));
      return AddTextWithout(ir_, PlainStrings(std::move(excluded), ends));
    }
    if (name == "sequence" || name == "or") {
      ASSIGN_OR_RETURN(const JsonValue* elements, Member(format, "elements", JsonValue::kArray));
      std::vector<NodeId> nodes;
      for (const JsonValue& element : elements->items) {
        ASSIGN_OR_RETURN(const NodeId node, Format(element, ends));
        nodes.push_back(node);
      }
      return name == "or" ? ir_.Alternative(nodes) : ir_.Sequence(nodes);
    }
    if (name == "optional" || name == "plus" || name == "star" || name == "repeat")
      return Repeat(format, name, ends);
    if (name == "tag") {
      ASSIGN_OR_RETURN(const Tag tag, ReadTag(format));
      return ir_.Sequence({AddMarkedLiteral(ir_, tag.begin, vocabulary_), tag.content, tag.end});
    }
    if (name == "triggered_tags") return TriggeredTags(format, ends);
    if (name == "tags_with_separator") return SeparatedTags(format);
    return RefuseSchema(
        *type, absl::StrFormat(
                   "\"%s\" is not supported, allowed const_string, json_schema, grammar, regex, any_text, "
                   "sequence, or, optional, plus, star, repeat, tag, triggered_tags and tags_with_separator",
                   name));
  }

  absl::StatusOr<NodeId> Schema(const JsonValue& format) {
    const JsonValue* schema = format.Find("json_schema");
    const JsonValue* style = format.Find("style");
    if (schema == nullptr) return RefuseSchema(format, "\"json_schema\" is missing");
    if (style == nullptr || style->text == "json") return AddJsonSchema(ir_, *schema, style_);
    if (style->text == "deepseek_xml")
      return AddXmlParameters(ir_, *schema, vocabulary_, DeepseekXml(), style_);
    if (style->text == "glm_xml") return AddXmlParameters(ir_, *schema, vocabulary_, GlmXml(), style_);
    return RefuseSchema(*style, "not supported, allowed json, deepseek_xml and glm_xml");
  }

  absl::StatusOr<NodeId> Repeat(const JsonValue& format, const std::string& name, const Ends& ends) {
    ASSIGN_OR_RETURN(const JsonValue* content, Member(format, "content", JsonValue::kObject));
    ASSIGN_OR_RETURN(const NodeId body, Format(*content, ends));
    if (name != "repeat") return ir_.Repeat(body, name == "plus" ? 1 : 0, name == "optional" ? 1 : -1);
    int bounds[2] = {0, 0};
    for (int b = 0; b < 2; ++b) {
      ASSIGN_OR_RETURN(const JsonValue* value, Member(format, b == 0 ? "min" : "max", JsonValue::kNumber));
      if (!absl::SimpleAtoi(value->text, &bounds[b]) || bounds[b] < -b || bounds[b] > Regex::kMaxRepeat ||
          (b == 1 && bounds[1] >= 0 && bounds[1] < bounds[0])) {
        return RefuseSchema(*value, absl::StrFormat("allowed 0 <= min <= max <= %d, and -1 as max for no end",
                                                    Regex::kMaxRepeat));
      }
    }
    return ir_.Repeat(body, bounds[0], bounds[1]);
  }

  // The strings that ordinary tokens can spell: text never contains an added token.
  std::vector<std::string> PlainStrings(std::vector<std::string> strings, const Ends& ends) const {
    strings.insert(strings.end(), ends.begin(), ends.end());
    std::erase_if(strings,
                  [&](const std::string& text) { return text.empty() || HasAddedToken(text, vocabulary_); });
    return strings;
  }

  absl::StatusOr<Tag> ReadTag(const JsonValue& format) {
    ASSIGN_OR_RETURN(const JsonValue* begin, Member(format, "begin", JsonValue::kString));
    const JsonValue* end = format.Find("end");
    if (end == nullptr || !(end->is_string() || end->is_array())) {
      return RefuseSchema(format,
                          "\"end\" is missing or of another type, allowed a string or a list of strings");
    }
    ASSIGN_OR_RETURN(const std::vector<std::string> ends, Strings(format, "end"));
    ASSIGN_OR_RETURN(const JsonValue* content, Member(format, "content", JsonValue::kObject));
    Tag tag = {begin->text, 0, 0};
    ASSIGN_OR_RETURN(tag.content, Format(*content, ends));
    std::vector<NodeId> choices;
    for (const std::string& text : ends) choices.push_back(AddMarkedLiteral(ir_, text, vocabulary_));
    tag.end = ir_.Alternative(choices);
    return tag;
  }
  absl::StatusOr<std::vector<Tag>> Tags(const JsonValue& format) {
    ASSIGN_OR_RETURN(const JsonValue* list, Member(format, "tags", JsonValue::kArray));
    std::vector<Tag> tags;
    for (const JsonValue& item : list->items) {
      ASSIGN_OR_RETURN(Tag tag, ReadTag(item));
      tags.push_back(std::move(tag));
    }
    return tags;
  }

  absl::StatusOr<NodeId> TriggeredTags(const JsonValue& format, const Ends& ends) {
    ASSIGN_OR_RETURN(const std::vector<std::string> triggers, Strings(format, "triggers"));
    ASSIGN_OR_RETURN(const std::vector<Tag> tags, Tags(format));
    ASSIGN_OR_RETURN(std::vector<std::string> excluded, Strings(format, "excludes"));
    ASSIGN_OR_RETURN(const bool at_least_one, Flag(format, "at_least_one"));
    ASSIGN_OR_RETURN(const bool stop_after_first, Flag(format, "stop_after_first"));
    return Dispatch(format, triggers, tags, PlainStrings(std::move(excluded), ends), at_least_one,
                    stop_after_first);
  }

  // The added tokens with which the tags of a root format begin, ascending. None if there are other triggers,
  // or strings that the text before the first tag may not contain.
  std::vector<int32_t> FreeUntil(const JsonValue& place, const std::vector<std::string>& triggers,
                                 const std::vector<Tag>& tags, bool has_excluded) const {
    if (!free_until_trigger_ || &place != root_ || has_excluded) return {};
    std::set<int32_t> of_triggers, of_tags;
    for (const std::string& trigger : triggers) {
      const auto added = AddedAt(trigger, vocabulary_);
      if (!added) return {};
      of_triggers.insert(added->second);
    }
    for (const Tag& tag : tags) {
      if (const auto added = AddedAt(tag.begin, vocabulary_)) of_tags.insert(added->second);
    }
    if (of_triggers != of_tags) return {};
    return {of_tags.begin(), of_tags.end()};
  }

  // Free text up to a trigger, the rest of a tag that begins with the trigger, then free text again.
  absl::StatusOr<NodeId> Dispatch(const JsonValue& place, const std::vector<std::string>& triggers,
                                  const std::vector<Tag>& tags, const std::vector<std::string>& excluded,
                                  bool at_least_one, bool stop_after_first) {
    std::vector<std::string> strings;  // that end free text: triggers of bytes, then what is excluded
    for (const std::string& trigger : triggers) {
      if (trigger.empty()) return RefuseSchema(place, "an empty trigger, allowed text");
      if (!HasAddedToken(trigger, vocabulary_)) strings.push_back(trigger);
    }
    const size_t plain_count = strings.size();
    strings.insert(strings.end(), excluded.begin(), excluded.end());
    FreeText text = MakeFreeText(ir_, strings);
    NodeGraph& graph = text.graph;
    const int32_t behind = graph.AddState();  // a tag has ended
    graph.states[behind].accepts = true;
    if (!stop_after_first) graph.AddEdge(behind, NodeGraph::kEmptyLabel, 0);
    std::vector<NodeId> whole_tags;
    for (const Tag& tag : tags) {
      const auto trigger = std::find_if(triggers.begin(), triggers.end(),
                                        [&](const std::string& t) { return tag.begin.starts_with(t); });
      if (trigger == triggers.end()) {
        return RefuseSchema(place, absl::StrFormat("no trigger begins the tag %s", QuoteJson(tag.begin)));
      }
      const NodeId whole =
          ir_.Sequence({AddMarkedLiteral(ir_, tag.begin, vocabulary_), tag.content, tag.end});
      whole_tags.push_back(whole);
      if (HasAddedToken(*trigger, vocabulary_)) {
        for (const int32_t state : text.between_chars) graph.AddEdge(state, whole, behind);
        continue;
      }
      const std::string rest = tag.begin.substr(trigger->size());
      const NodeId tail = ir_.Sequence({AddMarkedLiteral(ir_, rest, vocabulary_), tag.content, tag.end});
      for (const auto& [state, string] : text.found) {
        if (static_cast<size_t>(string) < plain_count && strings[string] == *trigger)
          graph.AddEdge(state, tail, behind);
      }
    }
    if (!at_least_one) trigger_ids_ = FreeUntil(place, triggers, tags, !excluded.empty());
    if (!at_least_one && trigger_ids_.empty()) {
      for (const int32_t state : text.between_chars) graph.states[state].accepts = true;
      return ir_.Graph(std::move(graph));
    }
    const NodeId first = ir_.Alternative(whole_tags);
    if (stop_after_first) return first;
    for (const int32_t state : text.between_chars) graph.states[state].accepts = true;
    return ir_.Sequence({first, ir_.Graph(std::move(graph))});
  }

  absl::StatusOr<NodeId> SeparatedTags(const JsonValue& format) {
    ASSIGN_OR_RETURN(const std::vector<Tag> tags, Tags(format));
    ASSIGN_OR_RETURN(const JsonValue* separator, Member(format, "separator", JsonValue::kString));
    ASSIGN_OR_RETURN(const bool at_least_one, Flag(format, "at_least_one"));
    ASSIGN_OR_RETURN(const bool stop_after_first, Flag(format, "stop_after_first"));
    std::vector<NodeId> choices;
    for (const Tag& tag : tags) {
      choices.push_back(ir_.Sequence({AddMarkedLiteral(ir_, tag.begin, vocabulary_), tag.content, tag.end}));
    }
    NodeId list = ir_.Alternative(choices);
    if (!stop_after_first) {
      const NodeId more = ir_.Sequence({AddMarkedLiteral(ir_, separator->text, vocabulary_), list});
      list = ir_.Sequence({list, ir_.Repeat(more, 0, -1)});
    }
    return at_least_one ? list : ir_.Optional(list);
  }

  // {"structures": [{"begin", "schema", "end"}], "triggers": [...]}
  absl::StatusOr<NodeId> CompileOld(const JsonValue& root) {
    ASSIGN_OR_RETURN(const JsonValue* structures, Member(root, "structures", JsonValue::kArray));
    ASSIGN_OR_RETURN(const std::vector<std::string> triggers, Strings(root, "triggers"));
    std::vector<Tag> tags;
    for (const JsonValue& item : structures->items) {
      ASSIGN_OR_RETURN(const JsonValue* begin, Member(item, "begin", JsonValue::kString));
      ASSIGN_OR_RETURN(const JsonValue* end, Member(item, "end", JsonValue::kString));
      const JsonValue* schema = item.Find("schema");
      if (schema == nullptr) return RefuseSchema(item, "\"schema\" is missing");
      ASSIGN_OR_RETURN(const NodeId content, AddJsonSchema(ir_, *schema, style_));
      tags.push_back({begin->text, content, AddMarkedLiteral(ir_, end->text, vocabulary_)});
    }
    return Dispatch(root, triggers, tags, {}, false, false);
  }

  Ir& ir_;
  const Vocabulary& vocabulary_;
  const JsonStyle style_;
  const bool free_until_trigger_;
  const JsonValue* root_ = nullptr;
  std::vector<int32_t> trigger_ids_;
};

}  // namespace

absl::StatusOr<StructuralTag> AddStructuralTag(Ir& ir, std::string_view source, const Vocabulary& vocabulary,
                                               const JsonStyle& style, bool free_until_trigger) {
  ASSIGN_OR_RETURN(const auto root, ParseJsonSource(source, ir.limits().max_depth));
  if (!root->is_object()) return RefuseSchema(*root, "not an object, allowed a structural tag");
  return TagCompiler(ir, vocabulary, style, free_until_trigger).Compile(*root);
}

}  // namespace foredraft
