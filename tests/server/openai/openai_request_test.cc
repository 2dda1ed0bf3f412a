#include "server/api/openai/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"

namespace foredraft {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

OpenAiRequest Read(OpenAiKind kind, const std::string& body) {
  absl::StatusOr<OpenAiRequest> request = ReadOpenAiRequest(kind, body);
  EXPECT_TRUE(request.ok()) << request.status();
  OpenAiRequest failed;
  failed.prompts.emplace_back();
  return request.ok() ? *std::move(request) : failed;
}

TEST(OpenAiRequest, EveryFieldOfAChatArrives) {
  OpenAiRequest request = Read(OpenAiKind::kChat, R"({
    "model": "abacus", "messages": [{"role": "developer", "content": "short"},
      {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}], "name": "bob"}],
    "temperature": 0.5, "top_p": 0.25, "top_k": 7, "min_p": 0.125, "repetition_penalty": 1.5,
    "presence_penalty": -1, "frequency_penalty": 2, "seed": 18446744073709551615, "max_tokens": 5,
    "max_completion_tokens": 9, "stop": ["x", "y"], "stop_token_ids": [3], "ignore_eos": true, "logprobs": true,
    "top_logprobs": 4, "n": 3, "stream": true, "stream_options": {"include_usage": true}, "user": "me",
    "chat_template_kwargs": {"enable_thinking": false, "reasoning_effort": "max"}, "reasoning_effort": "none", "max_draft_tokens": 2, "strict_acceptance": true,
    "priority": 1, "timeout_s": 2.5, "return_token_ids": true, "logit_bias": {"7": -1.5, "3": 2}, "tools": [], "tool_choice": "none",
    "response_format": {"type": "text"}, "min_tokens": 2, "guided_json": null})");
  EXPECT_EQ(request.model, "abacus");
  EXPECT_TRUE(request.stream && request.include_usage && request.return_token_ids);
  EXPECT_EQ(request.choice_count(), 3);
  const ClientRequest& client = request.common;
  const auto& messages = std::get<ChatMessages>(request.prompts.at(0));
  ASSERT_EQ(messages.size(), 2u);
  EXPECT_EQ(messages[0].role, "system");
  EXPECT_EQ(messages[1].content, "ab");
  EXPECT_THAT(messages[1].part_ends, ElementsAre(1u));
  EXPECT_EQ(client.choices.thinking, false);
  EXPECT_EQ(client.choices.reasoning_effort, "none");
  EXPECT_EQ(client.sampling.temperature, 0.5f);
  EXPECT_EQ(client.sampling.top_p, 0.25f);
  EXPECT_EQ(client.sampling.top_k, 7);
  EXPECT_EQ(client.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(client.sampling.presence_penalty, -1.0f);
  EXPECT_EQ(client.sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(client.sampling.min_tokens, 2);
  EXPECT_THAT(client.sampling.logit_bias,
              testing::UnorderedElementsAre(TokenBias{7, -1.5f}, TokenBias{3, 2}));
  EXPECT_EQ(client.max_tokens, 9);
  EXPECT_THAT(client.stop, ElementsAre("x", "y"));
  EXPECT_THAT(client.stop_token_ids, ElementsAre(3));
  EXPECT_TRUE(client.ignore_eos && client.strict_acceptance);
  EXPECT_EQ(client.logprobs, 4);
  EXPECT_EQ(client.max_draft_tokens, 2);
  EXPECT_EQ(client.priority, 1);
  EXPECT_EQ(client.timeout_s, 2.5);
  EXPECT_EQ(request.TakeChoice(0).sampling.seed, 18446744073709551615u);
  EXPECT_EQ(request.TakeChoice(2).sampling.seed, 1u);  // around the end
}

TEST(OpenAiRequest, WhatIsAbsentStaysAbsent) {
  const ClientRequest client =
      Read(OpenAiKind::kChat, R"({"messages": [{"role": "user", "content": "a"}], "seed": null})").common;
  EXPECT_FALSE(client.sampling.temperature.has_value() || client.sampling.seed.has_value());
  EXPECT_FALSE(client.max_tokens.has_value() || client.logprobs.has_value() ||
               client.choices.thinking.has_value());
}

TEST(OpenAiRequest, PromptsAreTextIdsOrListsOfThem) {
  const auto prompts = [](const std::string& prompt) {
    return Read(OpenAiKind::kCompletion, R"({"prompt": )" + prompt + R"(, "n": 2})").prompts;
  };
  EXPECT_EQ(std::get<std::string>(prompts(R"("a b")").at(0)), "a b");
  EXPECT_THAT(std::get<std::vector<int32_t>>(prompts("[1, 2]").at(0)), ElementsAre(1, 2));
  EXPECT_EQ(std::get<std::string>(prompts(R"(["a", "b"])").at(1)), "b");
  EXPECT_THAT(std::get<std::vector<int32_t>>(prompts("[[1], [2, 3]]").at(1)), ElementsAre(2, 3));
  EXPECT_EQ(Read(OpenAiKind::kCompletion, R"({"prompt": "a"})").common.max_tokens, 16);
}

TEST(OpenAiRequest, EachChoiceHasItsPromptAndWhatIsCommon) {
  OpenAiRequest request =
      Read(OpenAiKind::kCompletion, R"({"prompt": ["a", "b"], "n": 2, "stop": "x", "guided_regex": "r"})");
  ASSERT_EQ(request.choice_count(), 4);
  for (int i = 0; i < 4; ++i) {
    const ClientRequest choice = request.TakeChoice(i);
    EXPECT_EQ(std::get<std::string>(choice.input), i < 2 ? "a" : "b");
    EXPECT_THAT(choice.stop, ElementsAre("x"));
    EXPECT_EQ(choice.constraint->source, "r");
  }
}

TEST(OpenAiRequest, ACompletionChecksWhatItIgnores) {
  const auto read = [](const std::string& body) {
    return std::string(ReadOpenAiRequest(OpenAiKind::kCompletion, body).status().message());
  };
  EXPECT_EQ(read(R"({"prompt": "a", "parallel_tool_calls": true})"), "");
  EXPECT_EQ(read(R"({"prompt": "a", "parallel_tool_calls": [1]})"),
            "parallel_tool_calls: [1], allowed true, false");
  EXPECT_EQ(read("\xEF\xBB\xBF{\"prompt\": \"a\"}"),
            "body: begins with a byte order mark, allowed JSON alone");
}

TEST(OpenAiRequest, APromptOfTooManyIdsIsReadNoFurther) {
  const std::string ids = "[" + absl::StrJoin(std::vector<int>(200, 7), ",");
  for (const std::string& prompt : {ids, "[[1]," + ids}) {
    // What follows the 200 ids is no JSON.
    const std::string body = R"({"prompt": )" + prompt + "]!";
    const absl::Status status =
        ReadOpenAiRequest(OpenAiKind::kCompletion, body, {.max_prompt_ids = 150}).status();
    EXPECT_EQ(status.message(), "prompt: more than 150 values in a list, allowed at most 150");
    EXPECT_THAT(
        std::string(
            ReadOpenAiRequest(OpenAiKind::kCompletion, body, {.max_prompt_ids = 200}).status().message()),
        HasSubstr("body: not JSON"));
  }
  EXPECT_TRUE(ReadOpenAiRequest(OpenAiKind::kCompletion,
                                R"({"stop_token_ids": )" + ids + R"(], "prompt": "a"})",
                                {.max_prompt_ids = 2})
                  .ok())
      << "other lists have limits of their own";
}

struct Refusal {
  const char* name;
  std::string field;  // and its value, in JSON
  std::string text;
};

class RefusedField : public testing::TestWithParam<Refusal> {};

TEST_P(RefusedField, IsNamed) {
  const std::string body = R"({"messages": [{"role": "user", "content": "a"}], )" + GetParam().field + "}";
  const absl::StatusOr<OpenAiRequest> request =
      ReadOpenAiRequest(OpenAiKind::kChat, body, {.refuses_unknown = true});
  EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << request.status();
  EXPECT_THAT(std::string(request.status().message()), HasSubstr(GetParam().text));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, RefusedField,
    testing::Values(
        Refusal{"Tools", R"("tools": [{"type": "function"}])", "tools[0].function: absent"},
        Refusal{"ToolsList", R"("tools": {"a": 1})", "tools: {\"a\":1}, allowed a list"},
        Refusal{"ToolsSchema", R"("tools": [{"function": {"name": "f", "parameters": "{}"}}])",
                "tools[0].function.parameters: \"{}\", allowed a JSON schema"},
        Refusal{"ToolsUnknown", R"("tools": [{"function": {"name": "f", "paramters": {}}}])",
                "tools[0].function.paramters: unknown, nearest is tools[0].function.parameters"},
        Refusal{"ToolChoice", R"("tool_choice": {"type": "mcp"})",
                "tool_choice.type: \"mcp\", allowed function, custom"},
        Refusal{"ToolChoiceCustom", R"("tool_choice": {"type": "custom"})", "tool_choice.custom: absent"},
        Refusal{"ToolChoiceName", R"("tool_choice": 7)",
                "tool_choice: 7, allowed auto, none, required, a function or allowed_tools"},
        Refusal{"AllowedTools", R"("tool_choice": {"type": "allowed_tools"})",
                "tool_choice.mode: \"\", allowed auto, required"},
        Refusal{"AllowedMode",
                R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "none"}})",
                "tool_choice.allowed_tools.mode: \"none\", allowed auto, required"},
        Refusal{"AllowedNone",
                R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}})",
                "tool_choice.allowed_tools.tools: [], allowed a list of functions"},
        Refusal{
            "AllowedName",
            R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": ["f"]}})",
            "tool_choice.allowed_tools.tools[0]: \"f\", allowed an object"},
        Refusal{"ToolChoiceUnknown",
                R"("tool_choice": {"type": "function", "function": {"name": "f"}, "x": 1})",
                "tool_choice.x: unknown"},
        Refusal{"ToolChoiceUnknownInside",
                R"("tool_choice": {"type": "function", "function": {"name": "f", "strict": true}})",
                "tool_choice.function.strict: unknown"},
        Refusal{"ToolChoiceUnknownTool", R"("tool_choice": {"type": "function", "function": {"name": "f"}})",
                "tool_choice.function.name: \"f\", allowed a name in tools"},
        Refusal{
            "AllowedUnknown",
            R"("tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": []}, "x": 1})",
            "tool_choice.x: unknown"},
        Refusal{"Functions", R"("functions": [{"name": "f"}])", "tools is their newer name"},
        Refusal{"ResponseFormat", R"("response_format": {"type": "xml"})",
                "response_format.type: \"xml\", allowed text, json_object, json_schema, structural_tag"},
        Refusal{"NoSchema", R"("response_format": {"type": "json_schema", "json_schema": {"name": "a"}})",
                "response_format.json_schema.schema: absent, required"},
        Refusal{"NoJsonSchema", R"("response_format": {"type": "json_schema"})",
                "response_format.json_schema: absent, required"},
        Refusal{"SchemaOfAList",
                R"("response_format": {"type": "json_schema", "json_schema": {"schema": [1]}})",
                "response_format.json_schema.schema: [1], allowed an object or its JSON text"},
        Refusal{"TwoConstraints", R"("response_format": {"type": "json_object"}, "guided_regex": "a")",
                "guided_regex: given with response_format, allowed one of them"},
        Refusal{"TwoInside", R"("structured_outputs": {"json": {}, "regex": "a"})",
                "structured_outputs.regex: given with structured_outputs.json, allowed one of them"},
        Refusal{"WhiteSpace", R"("structured_outputs": {"json": {}, "whitespace_pattern": " "})",
                "structured_outputs.whitespace_pattern: \" \", allowed unset"},
        Refusal{"UnknownInside", R"("structured_outputs": {"jsn": {}})",
                "structured_outputs.jsn: unknown, nearest is structured_outputs.json"},
        Refusal{"LogitBiasKey", R"("logit_bias": {"a": 1})", "logit_bias: \"a\": 1, allowed a token id"},
        Refusal{"LogitBiasList", R"("logit_bias": [5])", "logit_bias: [5], allowed an object"},
        Refusal{"LogitBiasValue", R"("logit_bias": {"5": "x"})", "logit_bias: \"5\": \"x\", allowed"},
        Refusal{"MinTokens", R"("min_tokens": 1.5)", "min_tokens: 1.5, allowed a whole number"},
        Refusal{"Unknown", R"("max_token": 4)", "max_token: unknown, nearest is max_tokens"},
        Refusal{"UnknownOption", R"("stream": true, "stream_options": {"x": 1})",
                "stream_options.x: unknown"},
        Refusal{"BestOf", R"("best_of": 2)", "best_of: 2, allowed 1 or n"},
        Refusal{"Effort", R"("reasoning_effort": 5)", "reasoning_effort: 5, allowed a string"},
        Refusal{"ThinkingType", R"("thinking": {"type": "on"})",
                "thinking.type: \"on\", allowed enabled, disabled, adaptive, between_tools"},
        Refusal{"ThinkingSwitch", R"("thinking": "on")",
                "thinking: \"on\", allowed true, false or an object"},
        Refusal{"Continued", R"("continue_final_message": true)",
                "continue_final_message: true, allowed where the last message is an assistant's"},
        Refusal{"NoOpening", R"("add_generation_prompt": false)",
                "add_generation_prompt: false, allowed true without continue_final_message: true"},
        Refusal{"TopLogprobsAlone", R"("top_logprobs": 2)", "given without logprobs"},
        Refusal{"Type", R"("temperature": "hot")", "temperature: \"hot\", allowed a number"},
        Refusal{"Fraction", R"("max_tokens": 1.5)", "max_tokens: 1.5, allowed a whole number"},
        Refusal{"LargeInt", R"("max_tokens": 4294967296)", "max_tokens: 4294967296"},
        Refusal{"NoChoices", R"("n": 0)", "n: 0, allowed 1..128"},
        Refusal{"ManyChoices", R"("n": 129)", "n: 129, allowed 1..128"},
        Refusal{"Thinking", R"("chat_template_kwargs": {"enable_thinking": 1})",
                "enable_thinking: 1, allowed true, false"},
        Refusal{"Stop", R"("stop": [1])", "stop: [1], allowed a string or a list of strings"},
        Refusal{"Twice", R"("n": 1, "n": 2)", "given twice"}),
    [](const auto& info) { return std::string(info.param.name); });

struct Asked {
  std::string field;  // and its value, in JSON
  ClientConstraint constraint;
};

std::vector<Asked> AskedConstraints() {
  const char* const schema = R"({"b": 1.0, "a\u0041": [{"}": "]"}], "n": 1e2})";
  const std::string text = nlohmann::json(std::string(schema)).dump();
  const auto kind = [](const char* field, Constraint::Kind kind, std::string source = "") {
    return ClientConstraint{.field = field, .kind = kind, .source = std::move(source)};
  };
  ClientConstraint choice = kind("structured_outputs.choice", Constraint::kChoice);
  choice.choices = {"a", "b"};
  ClientConstraint guided_choice = kind("guided_choice", Constraint::kChoice);
  guided_choice.choices = {"c"};
  ClientConstraint compact = kind("structured_outputs.json", Constraint::kJsonSchema, schema);
  compact.compact = true;
  const std::string tag = R"({"type": "structural_tag", "format": {"type": "any_text"}})";
  return {
      {R"("response_format": {"type": "json_object"})", kind("response_format", Constraint::kJsonObject)},
      {std::string(R"("response_format": {"json_schema": {"strict": true, "name": "n", "schema": )") +
           schema + R"(}, "type": "json_schema"})",
       kind("response_format.json_schema.schema", Constraint::kJsonSchema, schema)},
      {R"("response_format": )" + tag, kind("response_format", Constraint::kStructuralTag, tag)},
      {std::string(R"("structured_outputs": {"json": )") + schema + R"(, "disable_any_whitespace": true})",
       compact},
      {R"("structured_outputs": {"choice": ["a", "b"], "regex": null})", choice},
      {R"("structured_outputs": {"regex": "a+"})",
       kind("structured_outputs.regex", Constraint::kRegex, "a+")},
      {R"("structured_outputs": {"grammar": "g"})",
       kind("structured_outputs.grammar", Constraint::kGbnf, "g")},
      {R"("structured_outputs": {"structural_tag": "{}"})",
       kind("structured_outputs.structural_tag", Constraint::kStructuralTag, "{}")},
      {R"("structured_outputs": {"json_object": true})",
       kind("structured_outputs.json_object", Constraint::kJsonObject)},
      {std::string(R"("guided_json": )") + schema, kind("guided_json", Constraint::kJsonSchema, schema)},
      {R"("guided_json": )" + text, kind("guided_json", Constraint::kJsonSchema, schema)},
      {R"("guided_regex": "x", "guided_decoding_backend": "auto")",
       kind("guided_regex", Constraint::kRegex, "x")},
      {R"("guided_choice": ["c"])", guided_choice},
      {R"("guided_grammar": "g")", kind("guided_grammar", Constraint::kGbnf, "g")},
      {R"("regex": "r")", kind("regex", Constraint::kRegex, "r")},
      {R"("ebnf": "e")", kind("ebnf", Constraint::kGbnf, "e")}};
}

TEST(OpenAiRequest, ConstraintsArriveAsTheyWereWritten) {
  for (const Asked& asked : AskedConstraints()) {
    SCOPED_TRACE(asked.field);
    for (const OpenAiKind api : {OpenAiKind::kChat, OpenAiKind::kCompletion}) {
      const std::string body =
          std::string(api == OpenAiKind::kChat ? R"({"messages": [{"role": "user", "content": "a"}], )"
                                               : R"({"prompt": "a", )") +
          asked.field + "}";
      const std::optional<ClientConstraint> read = Read(api, body).common.constraint;
      ASSERT_TRUE(read.has_value());
      EXPECT_EQ(read->field, asked.constraint.field);
      EXPECT_EQ(read->kind, asked.constraint.kind);
      EXPECT_EQ(read->source, asked.constraint.source);
      EXPECT_EQ(read->choices, asked.constraint.choices);
      EXPECT_EQ(read->compact, asked.constraint.compact);
    }
  }
  for (const char* none :
       {R"("response_format": {"type": "text"})", R"("response_format": null)", R"("structured_outputs": {})",
        R"("structured_outputs": {"json_object": false})"}) {
    const std::string body = std::string(R"({"prompt": "a", )") + none + "}";
    EXPECT_FALSE(Read(OpenAiKind::kCompletion, body).common.constraint.has_value()) << none;
  }
}

TEST(OpenAiRequest, RefusesMessagesByTheirPlace) {
  const auto refusal = [](const std::string& messages) {
    return std::string(
        ReadOpenAiRequest(OpenAiKind::kChat, R"({"messages": )" + messages + "}").status().message());
  };
  EXPECT_THAT(refusal("5"), HasSubstr("messages: 5, allowed a list"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": 5}])"),
              HasSubstr("messages[0].content: 5, allowed a string or a list of parts"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"type": "text"}]}])"),
              HasSubstr("messages[0].content[0].text: absent, required"));
  EXPECT_THAT(refusal(R"([{"role": "function", "name": "f", "content": "x"}])"),
              HasSubstr("messages[0].name: \"f\", allowed the name of a call in front of it"));
  EXPECT_THAT(refusal(R"([{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}])"),
              HasSubstr("messages[0].content[0].type: \"image_url\", allowed text"));
  EXPECT_THAT(refusal(R"([{"role": "assistant", "content": "", "tool_calls": [{}]}])"),
              HasSubstr("messages[0].tool_calls[0].function: absent"));
}

TEST(OpenAiRequest, ToolsCallsAndResultsArrive) {
  const OpenAiRequest request = Read(OpenAiKind::kChat, R"({
    "messages": [{"role": "user", "content": "Paris?"},
      {"role": "assistant", "content": null, "reasoning_content": "Look.", "tool_calls": [{"id": "c1", "index": 0,
        "type": "function", "function": {"name": "get_weather", "arguments": "{\"city\": \"Paris\"}"}}]},
      {"role": "tool", "tool_call_id": "c1", "name": "get_weather", "content": "sunny"}],
    "tools": [{"type": "function", "function": {"name": "get_weather", "description": "d", "strict": false,
      "parameters": {"type": "object", "properties": {"zip": {"type": "string"}, "city": {"type": "string"}},
                     "additionalProperties": false, "maximum": 123456789012345678901234567890.0}}},
      {"type": "function", "function": {"name": "now"}}, {"type": "function", "function": {"name": "now"}}],
    "tool_choice": "auto", "parallel_tool_calls": false})");
  const ClientRequest& client = request.common;
  const auto& messages = std::get<ChatMessages>(request.prompts.at(0));
  ASSERT_EQ(messages.size(), 3u);
  EXPECT_EQ(messages[1].thinking, "Look.");
  ASSERT_EQ(messages[1].tool_calls.size(), 1u);
  EXPECT_EQ(messages[1].tool_calls[0].id, "c1");
  EXPECT_EQ(messages[1].tool_calls[0].name, "get_weather");
  EXPECT_EQ(messages[1].tool_calls[0].arguments, "{\"city\": \"Paris\"}");
  EXPECT_EQ(messages[2].tool_call_id, "c1");
  EXPECT_EQ(client.tools.choice, "auto");
  EXPECT_FALSE(client.tools.parallel);
  ASSERT_EQ(client.tools.tools.size(), 2u);
  EXPECT_EQ(client.tools.tools[0].description, "d");
  // The schema is as it was written, which the model sees: the order of keys, the digits of numbers.
  EXPECT_EQ(client.tools.tools[0].parameters,
            R"({"type": "object", "properties": {"zip": {"type": "string"}, "city": {"type": "string"}},
                     "additionalProperties": false, "maximum": 123456789012345678901234567890.0})");
  EXPECT_EQ(client.tools.tools[1].parameters, "");
  const auto choice = [](const std::string& value) {
    return Read(OpenAiKind::kChat,
                R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"function": {"name": "f"}}], )"
                R"("tool_choice": )" +
                    value + "}")
        .common.tools.choice;
  };
  EXPECT_EQ(choice("\"required\""), "required");
  EXPECT_EQ(choice(R"({"type": "function", "function": {"name": "f"}})"), "function:f");
  const ChatTools allowed = Read(OpenAiKind::kChat, R"({"messages": [{"role": "user", "content": "a"}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
      {"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}]}}})")
                                .common.tools;
  EXPECT_EQ(allowed.choice, "required");
  EXPECT_THAT(allowed.allowed, testing::ElementsAre("f", "g"));
  const ChatTools flat = Read(OpenAiKind::kChat, R"({"messages": [{"role": "user", "content": "a"}],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "h"}]}})")
                             .common.tools;
  EXPECT_EQ(flat.choice, "auto");
  EXPECT_THAT(flat.allowed, testing::ElementsAre("h"));
}

TEST(OpenAiRequest, ToolsOfOtherTypesAreSkippedAndNoted) {
  FieldNotes notes;
  const std::string body =
      R"({"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "web_search"},
      {"type": "function", "defer_loading": true, "function": {"name": "f"}}, {"type": "custom", "custom": {"name": "g"}}]})";
  const auto request = ReadOpenAiRequest(OpenAiKind::kChat, body, {.notes = &notes});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_EQ(request->common.tools.tools.size(), 2u);
  EXPECT_TRUE(request->common.tools.tools[0].deferred);
  EXPECT_THAT(request->common.tools.tools[1].parameters, HasSubstr("\"input\""));
  EXPECT_THAT(request->custom_tools, testing::ElementsAre("g"));
  EXPECT_EQ(notes.Header(), "tools[].web_search");
}

TEST(OpenAiRequest, NamesOfOtherServersMeanTheSame) {
  const auto read = [](const std::string& field) {
    return Read(OpenAiKind::kChat, R"({"messages": [{"role": "user", "content": "a"}], )" + field + "}");
  };
  EXPECT_EQ(read(R"("max_tokens": 5, "max_completion_tokens": 6)").common.max_tokens, 6);
  EXPECT_EQ(read(R"("max_tokens": 5, "n_predict": 7, "max_completion_tokens": 6)").common.max_tokens, 7);
  EXPECT_STREQ(read(R"("n_predict": 7)").max_tokens_field, "n_predict");
  EXPECT_EQ(read(R"("max_tokens": -1)").common.max_tokens, std::nullopt);
  EXPECT_EQ(read(R"("repeat_penalty": 1.5)").common.sampling.repetition_penalty, 1.5f);
  EXPECT_EQ(read(R"("rid": "x")").common.request_id, "x");
  EXPECT_EQ(read(R"("extra_key": "s")").common.cache_salt, "s");
  EXPECT_TRUE(read(R"("no_stop_trim": true)").common.keeps_stop);
  EXPECT_EQ(read(R"("priority": 1000)").common.priority, 100);
  EXPECT_EQ(read(R"("priority": 1000)").common.notes.Header(), "priority");
  EXPECT_EQ(read(R"("stream_options": {"include_usage": true})").common.notes.Header(), "stream_options");
  EXPECT_TRUE(
      read(R"("stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true})")
          .continuous_usage);
  EXPECT_FALSE(
      read(R"("stream": true, "stream_options": {"continuous_usage_stats": true})").continuous_usage);
  EXPECT_TRUE(read(R"("return_tokens_as_token_ids": true)").tokens_as_ids);
  EXPECT_EQ(read(R"("n": 2, "best_of": 2)").choice_count(), 2);
  const ClientRequest completion =
      Read(OpenAiKind::kCompletion, R"({"prompt": "a", "add_special_tokens": false,
      "truncate_prompt_tokens": 3, "max_tokens": -1})")
          .common;
  EXPECT_FALSE(completion.add_bos);
  EXPECT_EQ(completion.truncate_prompt_tokens, 3);
  EXPECT_EQ(completion.max_tokens, std::nullopt);
}

struct Thought {
  const char* fields;
  std::optional<bool> thinking;
  const char* effort = "";
  bool hides = false;
};

TEST(OpenAiRequest, EverySpellingOfAThinkingBudgetIsRead) {
  for (const char* fields :
       {R"("thinking_token_budget": 9)", R"("thinking_budget": 9)", R"("thinking_budget_tokens": 9)",
        R"("reasoning": {"max_tokens": 9})", R"("thinking": {"type": "enabled", "budget_tokens": 9})",
        R"("custom_params": {"thinking_budget": 9})",
        R"("thinking_token_budget": 9, "thinking_budget": 5)"}) {
    SCOPED_TRACE(fields);
    const OpenAiRequest request =
        Read(OpenAiKind::kChat,
             std::string(R"({"messages": [{"role": "user", "content": "a"}], )") + fields + "}");
    EXPECT_EQ(request.common.thinking_budget, 9);
  }
  EXPECT_EQ(
      Read(OpenAiKind::kCompletion, R"({"prompt": "a", "thinking_token_budget": -1})").common.thinking_budget,
      -1);
}

TEST(OpenAiRequest, EverySpellingOfThinkingIsRead) {
  const Thought cases[] = {
      {R"("user": "a")", std::nullopt},
      {R"("reasoning_effort": "high")", std::nullopt, "high"},
      {R"("reasoning": {"effort": "low"})", std::nullopt, "low"},
      {R"("output_config": {"effort": "max"})", std::nullopt, "max"},
      {R"("think": "low")", std::nullopt, "low"},
      {R"("think": "low", "reasoning_effort": "high")", std::nullopt, "high"},
      {R"("chat_template_kwargs": {"reasoning_effort": "low"}, "reasoning_effort": null)", std::nullopt,
       "low"},
      {R"("thinking": true)", true},
      {R"("thinking": {"type": "enabled", "budget_tokens": 9})", true},
      {R"("thinking": {"type": "disabled"})", false},
      {R"("thinking": {"type": "adaptive", "display": "omitted"})", std::nullopt, "", true},
      {R"("enable_thinking": false)", false},
      {R"("think": true)", true},
      {R"("reasoning": {"enabled": false})", false},
      {R"("chat_template_kwargs": {"enable_thinking": true})", true},
      {R"("chat_template_kwargs": {"thinking": false}, "enable_thinking": true)", false},
      {R"("enable_thinking": true, "think": false)", false},
      {R"("include_reasoning": false)", std::nullopt, "", true},
      {R"("reasoning": {"exclude": true})", std::nullopt, "", true}};
  for (const Thought& thought : cases) {
    SCOPED_TRACE(thought.fields);
    const OpenAiRequest request =
        Read(OpenAiKind::kChat,
             std::string(R"({"messages": [{"role": "user", "content": "a"}], )") + thought.fields + "}");
    EXPECT_EQ(request.common.choices.thinking, thought.thinking);
    EXPECT_EQ(request.common.choices.reasoning_effort, thought.effort);
    EXPECT_EQ(request.hides_thinking, thought.hides);
  }
}

TEST(OpenAiRequest, HostileBodiesEndInAShortLine) {
  const std::string bodies[] = {"",
                                "{",
                                "[1, 2]",
                                std::string(100'000, '['),
                                "{\"a\": \"" + std::string(1 << 20, 'x'),
                                "\xff\xfe",
                                "{\"prompt\": [" + std::string(4 << 20, ',') + "]}",
                                "{\"prompt\": [0" +
                                    [] {
                                      std::string many;
                                      for (int i = 0; i < (1 << 20) + 1; ++i) many += ",0";
                                      return many;
                                    }() +
                                    "]}"};
  for (const std::string& body : bodies) {
    const absl::Status status = ReadOpenAiRequest(OpenAiKind::kCompletion, body).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << body.substr(0, 20);
    EXPECT_THAT(std::string(status.message()), HasSubstr("body: "));
    EXPECT_LT(status.message().size(), 400u);
  }
}

}  // namespace
}  // namespace foredraft
