#include "server/constraints/tool_tag.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "grammar/xml_parameters.h"
#include "server/text/tool_json.h"

namespace foredraft {
namespace {

using Json = nlohmann::ordered_json;

std::string FieldOf(size_t index) { return absl::StrCat("chat.tools[", index, "].parameters"); }

// Parts of a structural tag as JSON. Schemas stay as the client wrote them: order of keys, spelling of
// numbers.
std::string ConstText(std::string_view text) {
  return absl::StrCat("{\"type\":\"const_string\",\"value\":", QuotedJson(text), "}");
}

std::string InOrder(const std::vector<std::string>& parts) {
  return absl::StrCat("{\"type\":\"sequence\",\"elements\":[", absl::StrJoin(parts, ","), "]}");
}

std::string OneOf(const std::vector<std::string>& parts) {
  return absl::StrCat("{\"type\":\"or\",\"elements\":[", absl::StrJoin(parts, ","), "]}");
}

std::string Tag(std::string_view begin, const std::string& content, std::string_view end) {
  return absl::StrCat("{\"type\":\"tag\",\"begin\":", QuotedJson(begin), ",\"content\":", content,
                      ",\"end\":", QuotedJson(end), "}");
}

std::string SchemaPart(const std::string& schema, CallSyntax::Arguments arguments) {
  const char* const style = arguments == CallSyntax::Arguments::kJson   ? "json"
                            : arguments == CallSyntax::Arguments::kDsml ? "deepseek_xml"
                                                                        : "glm_xml";
  return absl::StrCat("{\"type\":\"json_schema\",\"style\":\"", style, "\",\"json_schema\":", schema, "}");
}

// The schema of a strict tool, restricted to objects.
absl::StatusOr<std::string> ObjectSchema(const std::string& parameters, const std::string& field) {
  if (parameters.empty()) return std::string("{\"type\":\"object\"}");
  const Json schema = Json::parse(parameters, nullptr, /*allow_exceptions=*/false);
  const auto type = schema.find("type");
  if (type == schema.end()) {
    const size_t brace = parameters.find('{');
    return absl::StrCat(parameters.substr(0, brace + 1), "\"type\":\"object\"", schema.empty() ? "" : ",",
                        parameters.substr(brace + 1));
  }
  if (*type == "object") return parameters;
  return absl::InvalidArgumentError(
      absl::StrCat(field, ": #/type: ", ShowJson(*type), ", allowed \"object\" where strict is true"));
}

// Whether the schema declares no property and lets any come.
bool IsDictionary(const Json& schema) {
  if (!schema.is_object()) return false;
  const auto properties = schema.find("properties"), others = schema.find("additionalProperties");
  if (properties != schema.end() && !properties->empty()) return false;
  return others == schema.end() ? properties == schema.end() : *others != false;
}

// The arguments of a tool that is not strict: any value for each property that the parameters declare, at
// most once, and exactly once if the property is required. A dictionary has any properties.
std::string DeclaredProperties(const std::string& parameters) {
  const Json schema = Json::parse(parameters, nullptr, /*allow_exceptions=*/false);
  if (IsDictionary(schema)) return "{\"type\":\"object\"}";
  const Json required =
      schema.is_object() && schema.contains("required") ? schema["required"] : Json::array();
  std::vector<std::string> properties, needed;
  if (schema.is_object() && schema.contains("properties") && schema["properties"].is_object()) {
    for (const auto& [name, value] : schema["properties"].items()) {
      if (!IsXmlName(name)) continue;
      properties.push_back(absl::StrCat(QuotedJson(name), ":{}"));
      if (std::find(required.begin(), required.end(), name) != required.end()) {
        needed.push_back(QuotedJson(name));
      }
    }
  }
  return absl::StrCat("{\"type\":\"object\",\"properties\":{", absl::StrJoin(properties, ","),
                      "},\"required\":[", absl::StrJoin(needed, ","), "]}");
}

absl::StatusOr<std::string> ArgumentsPart(const CallSyntax& calls, const ChatTool& tool, size_t index) {
  const bool is_json = calls.arguments == CallSyntax::Arguments::kJson;
  // A tool that says nothing of its parameters has none.
  if (!is_json && tool.parameters.empty()) {
    return SchemaPart(R"({"type":"object","properties":{}})", calls.arguments);
  }
  if (tool.strict) {
    ASSIGN_OR_RETURN(const std::string schema, ObjectSchema(tool.parameters, FieldOf(index)));
    return SchemaPart(schema, calls.arguments);
  }
  return SchemaPart(is_json ? "{\"type\":\"object\"}" : DeclaredProperties(tool.parameters), calls.arguments);
}

// One call, from its `call` literal to its end.
std::string CallTag(const CallSyntax& calls, const std::string& name, const std::string& arguments) {
  const std::string end = calls.spacing.before_call_end + calls.call_end;
  if (calls.names_ids) {
    // The index counts the conversation's calls, past ones too: any of up to 4 digits is allowed.
    const std::string index = "{\"type\":\"regex\",\"pattern\":\"0|[1-9][0-9]{0,3}\"}";
    return Tag(absl::StrCat(calls.call, "functions.", name, ":"),
               InOrder({index, ConstText(calls.name_end + calls.spacing.behind_name), arguments}), end);
  }
  return Tag(absl::StrCat(calls.call, name, calls.name_end, calls.spacing.behind_name), arguments, end);
}

// Where the first added token of the text begins, and its id.
std::optional<std::pair<size_t, int32_t>> FirstAdded(std::string_view text, const Tokenizer& tokenizer) {
  size_t at = 0;
  for (const TextSegment& segment : tokenizer.SplitAtAddedTokens(text)) {
    if (segment.added_id >= 0) return std::pair(at, segment.added_id);
    at += segment.text.size();
  }
  return std::nullopt;
}

// The format of one or more calls; of exactly one if `single`.
std::string Calls(const CallSyntax& calls, const std::vector<std::string>& tags, bool single) {
  return absl::StrCat("{\"type\":\"tags_with_separator\",\"tags\":[", absl::StrJoin(tags, ","),
                      "],\"separator\":", QuotedJson(calls.spacing.between_calls),
                      ",\"at_least_one\":true,\"stop_after_first\":", single ? "true}" : "false}");
}

std::string TextWithoutCalls(const CallSyntax& calls) {
  return absl::StrCat("{\"type\":\"any_text\",\"excludes\":[",
                      QuotedJson(calls.begin.empty() ? calls.call : calls.begin), "]}");
}

// Free text, then calls after the trigger, which is the format's own text.
std::string TextThenCalls(const CallSyntax& calls, const std::vector<std::string>& tags, bool single) {
  const std::string end = calls.spacing.before_end + calls.end;
  const std::string section =
      calls.begin.empty() ? absl::StrJoin(tags, ",")
                          : Tag(calls.begin + calls.spacing.behind_begin, Calls(calls, tags, single), end);
  const bool is_over = single || !calls.begin.empty();
  return absl::StrCat("{\"type\":\"triggered_tags\",\"triggers\":[",
                      QuotedJson(calls.begin.empty() ? calls.call : calls.begin), "],\"tags\":[", section,
                      "],\"stop_after_first\":", is_over ? "true}" : "false}");
}

}  // namespace

absl::StatusOr<ToolTag> MakeToolTag(const CallSyntax& calls, const ChatTools& tools,
                                    const Tokenizer& tokenizer, const std::string& alternative) {
  std::vector<std::string> tags;
  for (size_t i = 0; i < tools.tools.size(); ++i) {
    if (!tools.may_call(tools.tools[i])) continue;
    ASSIGN_OR_RETURN(const std::string arguments, ArgumentsPart(calls, tools.tools[i], i));
    tags.push_back(CallTag(calls, tools.tools[i].name, arguments));
  }
  // Every tool was removed.
  if (tags.empty()) return ToolTag{alternative.empty() ? TextWithoutCalls(calls) : alternative, {}};
  const bool single = !tools.parallel || tools.names_function();
  const bool has_section = !calls.begin.empty();
  const std::string begin = calls.begin + calls.spacing.behind_begin;
  const std::string end = calls.spacing.before_end + calls.end;
  const auto section = [&](const std::string& opening) {
    return has_section ? InOrder({ConstText(opening), Calls(calls, tags, single), ConstText(end)})
                       : Calls(calls, tags, single);
  };
  if (tools.is_forced() || !alternative.empty()) {
    std::string whole = section(calls.spacing.before_begin + begin);
    return ToolTag{tools.is_forced() ? std::move(whole) : OneOf({std::move(whole), alternative}), {}};
  }
  const auto trigger = FirstAdded(has_section ? calls.begin : calls.call, tokenizer);
  if (trigger && (has_section || trigger->first == 0)) {
    return ToolTag{section(begin.substr(has_section ? trigger->first : 0)), {trigger->second}};
  }
  return ToolTag{TextThenCalls(calls, tags, single), {}};
}

std::string AlternativePart(const Constraint& constraint) {
  const CallSyntax::Arguments json = CallSyntax::Arguments::kJson;
  switch (constraint.kind) {
    case Constraint::kJsonSchema:
      return SchemaPart(constraint.source, json);
    case Constraint::kJsonObject:
      return SchemaPart("{\"type\":\"object\"}", json);
    case Constraint::kRegex:
      return absl::StrCat("{\"type\":\"regex\",\"pattern\":", QuotedJson(constraint.source), "}");
    case Constraint::kGbnf:
      return absl::StrCat("{\"type\":\"grammar\",\"grammar\":", QuotedJson(constraint.source), "}");
    case Constraint::kChoice: {
      std::vector<std::string> texts;
      for (const std::string& choice : constraint.choices) texts.push_back(ConstText(choice));
      return OneOf(texts);
    }
    case Constraint::kStructuralTag:
      break;
  }
  CHECK(false) << "a structural tag is no part of another";
}

ChatTools WithKeptSchemas(const CallSyntax& calls, ChatTools tools, ConstraintCompiler& compiler) {
  if (!tools.is_forced()) return tools;
  for (size_t i = 0; i < tools.tools.size(); ++i) {
    ChatTool kept = tools.tools[i];
    if (kept.strict || !tools.may_call(kept)) continue;
    kept.strict = true;
    const absl::StatusOr<std::string> arguments = ArgumentsPart(calls, kept, i);
    if (arguments.ok() && compiler.CanCompile({.kind = Constraint::kStructuralTag, .source = *arguments})) {
      tools.tools[i] = std::move(kept);
    }
  }
  return tools;
}

absl::Status NameFaultyTool(const CallSyntax& calls, const ChatTools& tools, const absl::Status& whole,
                            ConstraintCompiler& compiler) {
  for (size_t i = 0; i < tools.tools.size(); ++i) {
    const ChatTool& tool = tools.tools[i];
    if (!tool.strict || !tools.may_call(tool)) continue;
    ASSIGN_OR_RETURN(const std::string arguments, ArgumentsPart(calls, tool, i));
    const absl::Status alone =
        compiler.Compile({.kind = Constraint::kStructuralTag, .source = arguments}, FieldOf(i)).status();
    if (alone.ok()) continue;
    // JSON pointers are those of the client's schema, not of the tag around it.
    return absl::Status(alone.code(),
                        absl::StrReplaceAll(std::string(alone.message()), {{": #/json_schema", ": #"}}));
  }
  return whole;
}

}  // namespace foredraft
