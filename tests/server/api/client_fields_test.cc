// The classes of fields: each row is what the readers do, and the request types of clients' libraries have no
// field without a row.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "server/api/anthropic/messages_request.h"
#include "server/api/fields/field_classes.h"
#include "server/api/name_log.h"
#include "server/api/openai/openai_request.h"
#include "server/api/responses/responses_request.h"

namespace foredraft {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

const json& Messages() {
  static const auto* const messages = new json(json::parse(R"([{"role": "user", "content": "a"}])"));
  return *messages;
}

json BodyOf(NotedWire wire, const json& more = json::object()) {
  json body = wire == NotedWire::kCompletions ? json{{"prompt", "a"}}
              : wire == NotedWire::kResponses ? json{{"input", Messages()}}
                                              : json{{"messages", Messages()}};
  body.update(more);
  return body;
}

struct ReadResult {
  std::string refusal;
  std::string header;
};
ReadResult Read(NotedWire wire, const json& body, bool refuses_unknown = false,
                std::set<std::string>* asked = nullptr) {
  FieldNotes notes;
  const ReadOptions options = {.refuses_unknown = refuses_unknown, .notes = &notes, .asked = asked};
  const std::string text = body.dump();
  absl::Status status;
  if (wire == NotedWire::kMessages) {
    status = ReadMessagesRequest(text, options).status();
  } else if (wire == NotedWire::kResponses) {
    status = ReadResponsesRequest(text, options).status();
  } else {
    const OpenAiKind kind = wire == NotedWire::kChat ? OpenAiKind::kChat : OpenAiKind::kCompletion;
    status = ReadOpenAiRequest(kind, text, options).status();
  }
  return {std::string(status.message()), notes.Header()};
}

constexpr NotedWire kWires[] = {NotedWire::kChat, NotedWire::kCompletions, NotedWire::kResponses,
                                NotedWire::kMessages};

TEST(FieldNotes, NamesPathsOnceAndCountsTheRest) {
  FieldNotes notes;
  EXPECT_TRUE(notes.empty());
  EXPECT_EQ(notes.Header(), "");
  notes.Dropped("verbosity");
  for (int i = 0; i < 3; ++i) notes.Unknown(absl::StrCat("messages[", i, "].timestamp"));
  EXPECT_EQ(notes.Header(), "verbosity, messages[].timestamp");
  EXPECT_EQ(notes.count(FieldNotes::Kind::kUnknown), 1);
  for (int i = 0; i < 20; ++i) notes.Unknown(absl::StrCat("x", i));
  for (int i = 0; i < 20; ++i) notes.Unknown(absl::StrCat("x", i));
  EXPECT_EQ(notes.count(), 22);
  EXPECT_EQ(notes.kept().size(), FieldNotes::kMostNames);
  EXPECT_TRUE(notes.Header().ends_with(", x13, +6")) << notes.Header();
}

TEST(FieldNotes, WritesNoBytesThatEndAHeader) {
  EXPECT_EQ(NoteName("a\r\nb: c\"ü[12].d-e_f[x1]"), "a??b??c???[].d-e_f[x1]");
  EXPECT_EQ(NoteName(std::string(1000, 'y')), std::string(64, 'y'));
}

TEST(NameLog, SaysEachNameOnceAndThenNoMore) {
  std::vector<std::string> lines;
  InstallLogSink([&lines](LogLevel, std::string_view line, const LogFields&) { lines.emplace_back(line); });
  NameLog log;
  FieldNotes notes;
  notes.Unknown("foo");
  notes.Dropped("verbosity");
  for (int i = 0; i < 3; ++i) log.Log(NotedWire::kChat, notes);
  log.Log(NotedWire::kCompletions, notes);
  EXPECT_THAT(lines,
              ElementsAre("ignored in requests of chat: foo: no such field is known",
                          "ignored in requests of chat: verbosity: this model or daemon cannot follow it",
                          "ignored in requests of completions: foo: no such field is known",
                          HasSubstr("of completions: verbosity")));
  for (int i = 0; i < 300; ++i) {
    FieldNotes more;
    more.Unknown(absl::StrCat("x", i));
    log.Log(NotedWire::kChat, more);
  }
  InstallLogSink({});
  EXPECT_EQ(lines.size(), NameLog::kMostNames);
  EXPECT_THAT(lines.back(), HasSubstr("further names are counted"));
}

// Bodies that together have every object that a reader knows.
std::vector<json> ChatBodies() {
  const json function = {{"type", "function"}, {"function", {{"name", "f"}}}};
  const json call = {{"id", "c"}, {"type", "function"}, {"function", {{"name", "f"}, {"arguments", "{}"}}}};
  const json custom = {{"id", "d"}, {"type", "custom"}, {"custom", {{"name", "g"}, {"input", "x"}}}};
  const json parts = json::parse(R"([{"type": "text", "text": "a"}, {"type": "refusal", "refusal": "b"},
      {"type": "thinking", "thinking": "c"}, {"type": "reasoning", "reasoning": "d"}])");
  const json reference = json::parse(R"([{"type": "tool_reference", "tool_name": "f"}])");
  const json full = {
      {"messages",
       {{{"role", "user"}, {"content", parts}},
        {{"role", "assistant"}, {"tool_calls", {call, custom}}},
        {{"role", "tool"}, {"tool_call_id", "c"}, {"content", reference}},
        {{"role", "assistant"}, {"function_call", {{"name", "f"}, {"arguments", ""}}}},
        {{"role", "function"}, {"name", "f"}, {"content", "x"}}}},
      {"tools", {function, {{"type", "custom"}, {"custom", {{"name", "g"}}}}}},
      {"stream_options", json::object()},
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", json::object()}}}}},
      {"structured_outputs", json::object()},
      {"reasoning", json::object()},
      {"output_config", json::object()},
      {"thinking", json::object()},
      {"custom_params", json::object()},
      {"chat_template_kwargs", json::object()},
      {"tool_choice", function}};
  json flat = full, allowed = full, flat_allowed = full, custom_choice = full;
  custom_choice["tool_choice"] = {{"type", "custom"}, {"custom", {{"name", "g"}}}};
  flat["tool_choice"] = {{"type", "function"}, {"name", "f"}};
  const json list = {function, {{"type", "function"}, {"name", "f"}}, custom_choice["tool_choice"]};
  allowed["tool_choice"] = {{"type", "allowed_tools"},
                            {"allowed_tools", {{"mode", "auto"}, {"tools", list}}}};
  flat_allowed["tool_choice"] = {{"type", "allowed_tools"}, {"mode", "auto"}, {"tools", list}};
  return {full, flat, allowed, flat_allowed, custom_choice};
}

std::vector<json> MessagesBodies() {
  const json full = json::parse(R"({
      "system": [{"type": "text", "text": "a"}],
      "messages": [
        {"role": "user", "content": [{"type": "text", "text": "a"}]},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "b"},
                                          {"type": "tool_use", "id": "c", "name": "f", "input": {}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [
          {"type": "text", "text": "d"}, {"type": "tool_reference", "tool_name": "f"},
          {"type": "search_result", "content": [{"type": "text", "text": "e"}]}]}]},
        {"role": "system", "content": [
          {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": {"name": "g"}}},
          {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "g"}}]}],
      "tools": [{"type": "custom", "name": "f", "input_schema": {}}],
      "tool_choice": {"type": "auto"}, "reasoning": {}, "thinking": {}, "custom_params": {},
      "chat_template_kwargs": {},
      "output_config": {"format": {"type": "json_schema", "schema": {}}}})");
  json others = {
      {"messages", Messages()},
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", json::object()}}}}},
      {"structured_outputs", json::object()}};
  return {full, others};
}

std::vector<json> ResponsesBodies() {
  const json full = json::parse(R"({
      "instructions": "a",
      "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "b"}]},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "c"}],
         "content": [{"type": "reasoning_text", "text": "c"}]},
        {"type": "function_call", "call_id": "d", "name": "f", "namespace": "n", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "e", "name": "g", "input": "x"},
        {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "a"},
          {"type": "refusal", "refusal": "b"}]},
        {"type": "additional_tools", "tools": [
          {"type": "function", "name": "h"}, {"type": "custom", "name": "i"},
          {"type": "namespace", "name": "m", "description": "y",
           "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}]}],
      "tools": [
        {"type": "function", "name": "f"}, {"type": "custom", "name": "g"},
        {"type": "namespace", "name": "n", "description": "x",
         "tools": [{"type": "function", "name": "f"}, {"type": "custom", "name": "g"}]}],
      "tool_choice": {"type": "function", "name": "f", "namespace": "n"},
      "text": {"format": {"type": "json_schema", "schema": {}}},
      "reasoning": {}, "thinking": {}, "custom_params": {}, "chat_template_kwargs": {}, "output_config": {}})");
  json others = {
      {"input", Messages()},
      {"response_format", {{"type", "json_schema"}, {"json_schema", {{"schema", json::object()}}}}},
      {"structured_outputs", json::object()},
      {"tools", full["tools"]},
      {"tool_choice", json::parse(R"({"type": "allowed_tools", "mode": "auto", "tools": [
                     {"type": "function", "name": "f", "namespace": "n"}]})")}};
  return {full, others};
}

std::vector<json> FullBodies(NotedWire wire) {
  if (wire == NotedWire::kResponses) return ResponsesBodies();
  if (wire == NotedWire::kMessages) return MessagesBodies();
  std::vector<json> bodies = ChatBodies();
  if (wire == NotedWire::kChat) return bodies;
  for (json& body : bodies) {
    for (const char* chat : {"messages", "tools", "tool_choice"}) body.erase(chat);
    body = BodyOf(wire, body);
  }
  return bodies;
}

TEST(FieldClasses, ReadersAskForTheFieldsThatAreTaken) {
  for (const NotedWire wire : kWires) {
    std::set<std::string> asked, taken;
    for (const json& body : FullBodies(wire)) {
      EXPECT_EQ(Read(wire, body, /*refuses_unknown=*/wire != NotedWire::kCompletions, &asked).refusal, "");
    }
    for (const FieldRow& row : FieldRows()) {
      if (row.wire == wire && row.field_class == FieldClass::kTaken) taken.emplace(row.path);
    }
    EXPECT_EQ(asked, taken);
  }
}

// What stands around a field of the Responses API.
void PrepareResponses(const std::string& path, json& body) {
  const json tools = json::parse(R"([{"type": "function", "name": "f"}])");
  const json in_namespace = {{{"type", "namespace"}, {"name", "n"}, {"tools", tools}}};
  if (path.starts_with("tools[].")) body["tools"] = path.starts_with("tools[].tools") ? in_namespace : tools;
  if (path.starts_with("tool_choice.")) body["tools"] = tools;
  if (path.starts_with("text.")) body["text"] = json::parse(R"({"format": {"type": "text"}})");
  if (path.starts_with("input[].content[].")) body["input"][0]["content"] = {{{"text", "a"}}};
  if (path.starts_with("input[].output[].")) {
    body["input"] =
        json::parse(R"([{"type": "function_call_output", "call_id": "c", "output": [{"text": "a"}]}])");
  }
  if (path.starts_with("input[].tools[].")) {
    body["input"] = {{{"type", "additional_tools"},
                      {"tools", path.starts_with("input[].tools[].tools") ? in_namespace : tools}}};
  }
}

// A body with `value` under the row's path.
json BodyWith(NotedWire wire, const std::string& path, const json& value) {
  json body = BodyOf(wire);
  const bool is_messages = wire == NotedWire::kMessages;
  body["tools"] = wire == NotedWire::kChat ? json::parse(R"([{"function": {"name": "f"}}])") : json();
  if (is_messages && path.starts_with("tools[].")) body["tools"] = json::parse(R"([{"name": "f"}])");
  if (is_messages && path.starts_with("system[].")) body["system"] = {{{"text", "a"}}};
  if (wire == NotedWire::kResponses) PrepareResponses(path, body);
  if (path.starts_with("messages[].content[].")) {
    body["messages"][0]["content"] = {{{"type", "text"}, {"text", "a"}}};
  }
  if (path.starts_with("messages[].content[].tool.")) {
    body["messages"][0] = json::parse(R"({"role": "system", "content": [{"type": "tool_addition", "tool": {
        "type": "tool_definition", "definition": {"name": "g"}}}]})");
  }
  if (path.starts_with("messages[].content[].content[].")) {
    body["messages"][0]["content"] = json::parse(R"([{"type": "tool_result", "tool_use_id": "c", "content": [
        {"type": "search_result", "content": [{"text": "a"}]}]}])");
  }
  if (path.starts_with("messages[].tool_calls[].")) {
    body["messages"] = json::parse(R"([{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}])");
  }
  if (path.starts_with("tool_choice.")) body["tool_choice"] = json::parse(R"({"function": {"name": "f"}})");
  if (path.starts_with("stream_options.")) body["stream"] = true;
  if (path.starts_with("structured_outputs.")) body["structured_outputs"] = json::object();
  if (path.starts_with("response_format.")) {
    body["response_format"] = json::parse(R"({"type": "json_schema", "json_schema": {"schema": {}}})");
  }
  json* at = &body;
  for (size_t begin = 0; begin < path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    std::string name = path.substr(begin, end - begin);
    const bool is_list = name.ends_with("[]");
    if (is_list) name.resize(name.size() - 2);
    at = is_list ? &(*at)[name][0] : &(*at)[name];
    begin = end + 1;
  }
  *at = value;
  return body;
}

// Strange enough to be no row's neutral value, and of a type that no reader takes.
const json& Strange() {
  static const auto* const strange = new json({{"strange", {1, 2}}});
  return *strange;
}

TEST(FieldClasses, EachRowIsWhatTheReadersDo) {
  for (const FieldRow& row : FieldRows()) {
    const NotedWire wire = row.wire;
    const std::string path(row.path);
    SCOPED_TRACE(absl::StrCat(kNotedWires[static_cast<size_t>(row.wire)], " ", path));
    if (row.field_class == FieldClass::kTaken) continue;  // the test above
    for (const bool refuses : {false, true}) {
      const ReadResult null = Read(wire, BodyWith(wire, path, nullptr), refuses);
      EXPECT_EQ(null.refusal + null.header, "") << "null is absent";
      const ReadResult strange = Read(wire, BodyWith(wire, path, Strange()), refuses);
      EXPECT_EQ(strange.header, row.field_class == FieldClass::kHint ? path : "");
      if (row.field_class != FieldClass::kRefused) {
        EXPECT_EQ(strange.refusal, "");
        continue;
      }
      EXPECT_THAT(strange.refusal, HasSubstr(row.note));
      for (const json& neutral : json::parse(row.neutral)) {
        const ReadResult passed = Read(wire, BodyWith(wire, path, neutral), refuses);
        EXPECT_EQ(passed.refusal + passed.header, "") << neutral;
      }
    }
  }
}

TEST(FieldClasses, UnknownNamesAreNotedOrRefusedWithTheNearest) {
  const std::pair<const char*, const char*> cases[] = {
      {"max_token", "max_token: unknown, nearest is max_tokens"},
      {"messages[].timestamp", "messages[0].timestamp: unknown, nearest is messages[0]."},
      {"messages[].content[].txt",
       "messages[0].content[0].txt: unknown, nearest is messages[0].content[0].text"},
      {"tools[].function.paramters", "nearest is tools[0].function.parameters"},
      {"tool_choice.function.nam", "nearest is tool_choice.function.name"},
      {"structured_outputs.jsn", "nearest is structured_outputs.json"},
      {"response_format.json_schema.schem", "nearest is response_format.json_schema.schema"}};
  for (const auto& [path, refusal] : cases) {
    const json body = BodyWith(NotedWire::kChat, path, 1);
    EXPECT_THAT(Read(NotedWire::kChat, body, true).refusal, HasSubstr(refusal));
    const ReadResult ignored = Read(NotedWire::kChat, body);
    EXPECT_EQ(ignored.refusal, "");
    EXPECT_EQ(ignored.header, path);
  }
  // A field of the other wire is none of this one.
  EXPECT_EQ(Read(NotedWire::kCompletions, BodyOf(NotedWire::kCompletions, {{"messages", "x"}})).header,
            "messages");
  // What is refused names the rest, too.
  const ReadResult both = Read(NotedWire::kChat, BodyOf(NotedWire::kChat, {{"echo", true}, {"foo", 1}}));
  EXPECT_THAT(both.refusal, HasSubstr("echo: true, allowed false"));
  EXPECT_EQ(both.header, "foo");
}

TEST(FieldClasses, ManyUnknownNamesAreCountedUpToABound) {
  json body = BodyOf(NotedWire::kChat);
  for (int i = 0; i < 100'000; ++i) body[absl::StrCat("unknown_", i)] = i;
  const ReadResult read = Read(NotedWire::kChat, body);
  EXPECT_EQ(read.refusal, "");
  EXPECT_TRUE(read.header.ends_with(", +1024")) << read.header;
  EXPECT_LE(read.header.size(), 1200u);
}

// Whether a path is below a field of `names` directly under `above`.
bool IsBelow(const std::string& path, const std::string& above, const std::set<std::string>& names) {
  if (!path.starts_with(above)) return false;
  const std::string rest = path.substr(above.size());
  return names.contains(rest.substr(0, rest.find_first_of(".[")));
}

// Fields of blocks and tools of Anthropic's own, which are left out or refused by their type, and the inside
// of schemas: they have no readers.
bool HasNoReader(const std::string& path) {
  const std::set<std::string> of_tools = absl::StrSplit(
      "allowed_domains blocked_domains citations configs default_config display_height_px display_number "
      "display_width_px enable_zoom max_characters max_content_tokens max_tokens max_uses mcp_server_name "
      "model response_inclusion tools url_sources use_cache user_location",
      ' ');
  for (const char* above : {"tools[].", "messages[].content[].tool.definition."}) {
    if (path.starts_with(absl::StrCat(above, "input_schema.")) || IsBelow(path, above, of_tools)) return true;
  }
  return path.starts_with("messages[].content[].content.") ||
         IsBelow(path, "messages[].content[].",
                 {"encrypted_content", "from", "mcp_server_name", "server_name", "to", "tool_changes",
                  "tools", "trigger"}) ||
         IsBelow(path, "messages[].content[].content[].",
                 {"encrypted_content", "page_age", "state_changes", "tabs", "url"});
}

// Fields of items and tools that OpenAI's own servers would run, by the same rule.
bool HasNoReaderInResponses(const std::string& path) {
  const std::set<std::string> of_tools = absl::StrSplit(
      "action allowed_tools annotations authorization background complexity connector_id container "
      "display_height display_width environment execution external_web_access filters frame_count "
      "frame_duration_ms headers input_fidelity input_image_mask input_schema max_num_results model "
      "moderation output_compression output_format partial_images quality ranking_options "
      "require_approval search_content_types search_context_size server_description server_label "
      "server_url size svg tunnel_id user_location vector_store_ids",
      ' ');
  const std::set<std::string> of_items = absl::StrSplit(
      "acknowledged_safety_checks action actions approval_request_id approve background code "
      "container_id environment error execution fingerprint max_output_length operation "
      "output_format outputs pending_safety_checks quality queries reason reasoning result results "
      "revised_prompt server_label size svg_usage text",
      ' ');
  return IsBelow(path, "tools[].", of_tools) || IsBelow(path, "input[].tools[].", of_tools) ||
         IsBelow(path, "input[].", of_items) || IsBelow(path, "tool_choice.", {"server_label"}) ||
         path.find("[].format.") != std::string::npos ||  // of a custom tool, noted whole
         path.starts_with("input[].output.") ||           // a screenshot, of a computer's call
         IsBelow(path, "input[].output[].", {"outcome", "stderr", "stdout"});
}

// tests/golden/make_client_fields_golden.py walks the types; a field below one that is ignored, noted or
// refused needs no row.
TEST(FieldClasses, EveryFieldOfClientsLibrariesHasAClass) {
  const json golden = json::parse(std::ifstream("tests/golden/client_fields.golden.json"));
  for (const auto& [name, wire] :
       {std::pair("chat", NotedWire::kChat), std::pair("completions", NotedWire::kCompletions),
        std::pair("messages", NotedWire::kMessages), std::pair("beta_messages", NotedWire::kMessages),
        std::pair("count_tokens", NotedWire::kMessages), std::pair("responses", NotedWire::kResponses),
        std::pair("input_tokens", NotedWire::kResponses)}) {
    const json& fields = golden["fields"][name];
    EXPECT_GE(fields.size(), 17u);
    for (const std::string path : fields) {
      if (path.starts_with("tools[].custom.format.")) continue;  // noted whole
      if (wire == NotedWire::kMessages && HasNoReader(path)) continue;
      if (wire == NotedWire::kResponses && HasNoReaderInResponses(path)) continue;
      bool has_class = FindFieldRow(wire, path) != nullptr;
      for (size_t dot = path.find('.'); !has_class && dot != std::string::npos;
           dot = path.find('.', dot + 1)) {
        std::string above = path.substr(0, dot);
        if (above.ends_with("[]")) above.resize(above.size() - 2);
        const FieldRow* row = FindFieldRow(wire, above);
        has_class = row != nullptr && row->field_class != FieldClass::kTaken;
      }
      EXPECT_TRUE(has_class) << name << " " << path << ": " << golden["versions"]
                             << " has this field; give it a row in server/api/fields/field_classes.inc";
    }
  }
}

}  // namespace
}  // namespace foredraft
