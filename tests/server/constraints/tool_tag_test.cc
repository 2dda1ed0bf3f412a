// Calls by constraint: what a family's tag allows is what its parser reads back as calls whose arguments
// follow the schemas.

#include "server/constraints/tool_tag.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "server/text/answer_parser.h"
#include "server/text/chat_format.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kVocabSize = 400;
constexpr int32_t kEnd = 399;  // the models' end of text
constexpr size_t kWalkTokens = 160;

ChatTool Weather() {
  return {
      .name = "get_weather",
      .parameters =
          R"({"type":"object","properties":{"city":{"type":"string","maxLength":12},"days":{"type":"integer",
              "minimum":1,"maximum":14},"unit":{"enum":["c","f"]},"note":{"type":["string","null"]}},
              "required":["city","days","note"],"additionalProperties":false})",
      .strict = true};
}
ChatTool Log() {
  return {.name = "log",
          .parameters =
              R"({"type":"object","properties":{"text":{"type":"string"},"level":{"type":"integer"}}})"};
}

void ExpectWeather(const json& arguments) {
  ASSERT_TRUE(arguments.is_object()) << arguments;
  for (const auto& [key, value] : arguments.items()) {
    EXPECT_TRUE(std::set<std::string>({"city", "days", "unit", "note"}).contains(key)) << arguments;
  }
  EXPECT_TRUE(arguments.value("city", json()).is_string()) << arguments;
  EXPECT_TRUE(arguments.value("days", json()).is_number_integer()) << arguments;
  EXPECT_TRUE(arguments.value("days", 0) >= 1 && arguments.value("days", 0) <= 14) << arguments;
  EXPECT_TRUE(arguments.contains("note") && (arguments["note"].is_null() || arguments["note"].is_string()))
      << arguments;
  const json unit = arguments.value("unit", json("c"));
  EXPECT_TRUE(unit == "c" || unit == "f") << arguments;
}

struct Family {
  const char* name;
  std::unique_ptr<Tokenizer> (*tokenizer)();
  const char* own_format;
  const char* trigger;  // empty: none is a token
};
std::ostream& operator<<(std::ostream& out, const Family& family) { return out << family.name; }

const Family kFamilies[] = {
    {"r1", [] { return DeepseekTokenizer(nullptr); }, "deepseek_r1", "<｜tool▁calls▁begin｜>"},
    {"v31", [] { return DeepseekTokenizer(kV31Template); }, "", "<｜tool▁calls▁begin｜>"},
    {"v32", [] { return DeepseekTokenizer(nullptr); }, "deepseek_v32", "｜DSML｜"},
    {"v4", [] { return DeepseekTokenizer(nullptr); }, "deepseek_v4", "｜DSML｜"},
    {"glm", [] { return GlmTokenizer(); }, "", "<tool_call>"},
    {"kimi", [] { return KimiTokenizer(); }, "", "<|tool_calls_section_begin|>"},
    {"r1_bytes", [] { return DeepseekTokenizer(nullptr, false); }, "deepseek_r1", ""},
    {"v32_bytes", [] { return DeepseekTokenizer(nullptr, false); }, "deepseek_v32", ""},
    {"glm_bytes", [] { return GlmTokenizer(false); }, "", ""}};

// What a parser has made of an answer.
struct Parsed {
  std::string text;
  std::vector<CallDelta> calls;
  int incomplete = 0;
  bool broken = false;
};

class ToolTagTest : public testing::TestWithParam<Family> {
 protected:
  ToolTagTest()
      : tokenizer_(GetParam().tokenizer()),
        format_(*ChatFormat::Create(*tokenizer_, GetParam().own_format)),
        vocabulary_(*MakeVocabulary(*tokenizer_, kVocabSize, {kEnd})) {}

  std::shared_ptr<const Grammar> Compile(const ToolTag& tag) {
    const auto grammar = CompileConstraint({.kind = Constraint::kStructuralTag, .source = tag.source},
                                           vocabulary_, GrammarLimits{});
    EXPECT_TRUE(grammar.ok()) << grammar.status() << "\n" << tag.source;
    return grammar.ok() ? *grammar : nullptr;
  }

  // A token that helps the output to end: what closes what is open.
  int32_t Closing(const TokenMask& mask, const std::string& text) {
    if (text.ends_with('<') && mask.Allows('/') && !mask.Allows('x')) return '/';
    if (mask.Allows('<') && mask.Allows('\n') && !mask.Allows('x')) return '<';
    for (const auto& [content, id] : vocabulary_->added()) {
      if (mask.Allows(id)) return id;
    }
    // Within a string of JSON, which has no raw line breaks.
    if (mask.Allows('"') && mask.Allows('x') && !mask.Allows('\n')) return '"';
    const CallSyntax calls = format_.calls();
    for (const std::string& literal : {calls.value_end, calls.key_end}) {
      for (size_t length = std::min(literal.size(), text.size()) + 1; length-- > 0;) {
        const std::string begun = literal.substr(0, length);
        if (length == literal.size() || !text.ends_with(begun)) continue;
        const auto next = static_cast<uint8_t>(literal[length]);
        if (mask.Allows(next)) return next;
        break;
      }
    }
    for (const char byte : {'}', ']', '"'}) {
      if (mask.Allows(byte)) return byte;
    }
    return -1;
  }

  // The tokens of one output, drawn from the masks.
  std::vector<int32_t> Walk(const std::shared_ptr<const Grammar>& grammar, std::mt19937& random) {
    Matcher matcher(grammar);
    std::vector<int32_t> ids;
    std::string text;
    while (ids.size() < 4000) {
      const auto mask = matcher.Mask();
      if (!mask.ok()) {
        ADD_FAILURE() << mask.status();
        return ids;
      }
      int32_t id = -1;
      const bool closes = ids.size() > kWalkTokens;
      if ((*mask)->Allows(kEnd) && (closes || random() % 2 == 0)) return ids;
      if (closes) id = Closing(**mask, text);
      while (id < 0) {
        const auto drawn = static_cast<int32_t>(random() % kVocabSize);
        if (drawn != kEnd && (*mask)->Allows(drawn)) id = drawn;
        if ((*mask)->Allows(kEnd) && (*mask)->count == 1) return ids;
      }
      EXPECT_TRUE(*matcher.Advance(id));
      ids.push_back(id);
      text += vocabulary_->IsOrdinary(id) ? std::string(vocabulary_->bytes(id))
                                          : std::string(tokenizer_->TokenBytes(id));
    }
    ADD_FAILURE() << "an output without an end: " << text.substr(0, 2000);
    return ids;
  }

  Parsed Parse(const std::vector<int32_t>& ids, const ChatTools& tools) {
    AnswerParser parser({.syntax = &format_.answers(), .tools = tools.tools, .id_prefix = "call"});
    std::string marked, bytes;
    for (const int32_t id : ids) {
      const int mark = format_.answers().MarkOf(id);
      marked += mark >= 0 ? MarkText(mark) : std::string(tokenizer_->TokenBytes(id));
    }
    AnswerDelta delta, last;
    parser.Feed(marked, delta);
    parser.End(last);
    AppendCalls(delta.calls, std::move(last.calls));
    return {delta.text + last.text, delta.calls, parser.incomplete_calls(), parser.has_broken_call()};
  }

  std::string Spelled(const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) text += tokenizer_->TokenBytes(id);
    return text;
  }

  std::vector<int32_t> Ids(const std::string& text) {
    return *tokenizer_->Encode(text, {.parse_special = true, .add_bos = false});
  }
  // Whether the grammar takes the whole text.
  bool Takes(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
    Matcher matcher(grammar);
    for (const int32_t id : Ids(text)) {
      if (!*matcher.Advance(id)) return false;
    }
    return matcher.IsAccepting();
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
  const ChatFormat format_;
  const std::shared_ptr<const Vocabulary> vocabulary_;
};

TEST_P(ToolTagTest, WhatItAllowsIsReadBackAsCalls) {
  struct Case {
    const char* choice;
    bool parallel;
    std::vector<std::string> allowed;
  };
  for (const Case& test :
       {Case{"required", true, {}}, Case{"required", false, {}}, Case{"function:log", true, {}},
        Case{"function:get_weather", true, {}}, Case{"auto", true, {}}, Case{"auto", false, {}},
        Case{"auto", true, {"log"}}, Case{"required", true, {"now", "get_weather"}}}) {
    const ChatTools tools = {.tools = {Weather(), {.name = "now"}, Log()},
                             .choice = test.choice,
                             .allowed = test.allowed,
                             .parallel = test.parallel};
    const auto tag = MakeToolTag(format_.calls(), tools, *tokenizer_);
    ASSERT_TRUE(tag.ok()) << tag.status();
    const auto grammar = Compile(*tag);
    ASSERT_NE(grammar, nullptr);
    std::mt19937 random(7);
    size_t most_calls = 0;
    for (int walk = 0; walk < 40; ++walk) {
      std::vector<int32_t> ids = Walk(grammar, random);
      SCOPED_TRACE(std::string(test.choice) + ": " + Spelled(ids));
      // Behind a trigger the tag begins with it; what stands before it in the answer is text.
      const size_t kept = Spelled(ids).starts_with("｜DSML｜") ? 1 : 0;
      if (kept == 1) ids.insert(ids.begin(), '<');
      const Parsed parsed = Parse(ids, tools);
      EXPECT_FALSE(parsed.broken);
      EXPECT_EQ(parsed.incomplete, 0);
      if (tools.is_forced() || !tag->trigger_ids.empty()) {
        EXPECT_GE(parsed.calls.size(), 1u);
        EXPECT_EQ(parsed.text.find_first_not_of('\n'), std::string::npos) << parsed.text;
      }
      if (!test.parallel || tools.names_function()) {
        EXPECT_LE(parsed.calls.size(), 1u);
      }
      most_calls = std::max(most_calls, parsed.calls.size());
      for (const CallDelta& call : parsed.calls) {
        EXPECT_TRUE(call.complete);
        EXPECT_TRUE(test.allowed.empty() ||
                    std::count(test.allowed.begin(), test.allowed.end(), call.name) == 1)
            << call.name;
        if (tools.names_function()) {
          EXPECT_EQ(call.name, tools.function());
        }
        // Exponents of three digits are JSON, and too large for this reader of it.
        static const std::regex kExponent("[eE][+-]?[0-9]{3}");
        const json arguments =
            json::parse(std::regex_replace(call.arguments, kExponent, "e1"), nullptr, false);
        EXPECT_TRUE(arguments.is_object()) << call.arguments;
        if (call.name == "get_weather") ExpectWeather(arguments);
      }
    }
    const bool calls_surely = tools.is_forced() || !tag->trigger_ids.empty();
    if (test.parallel && calls_surely && !tools.names_function()) {
      EXPECT_GT(most_calls, 1u) << test.choice;
    }
  }
}

TEST_P(ToolTagTest, TheTriggerIsTheFamilysToken) {
  ChatTools tools = {.tools = {Weather()}};
  const auto automatic = MakeToolTag(format_.calls(), tools, *tokenizer_);
  ASSERT_TRUE(automatic.ok()) << automatic.status();
  const std::string trigger = GetParam().trigger;
  if (trigger.empty()) {
    EXPECT_TRUE(automatic->trigger_ids.empty());
    const auto grammar = Compile(*automatic);
    EXPECT_TRUE(Takes(grammar, "No call is needed."));
    EXPECT_TRUE(Takes(grammar, ""));
  } else {
    ASSERT_THAT(automatic->trigger_ids, ElementsAre(*tokenizer_->AddedTokenId(trigger)));
    Matcher matcher(Compile(*automatic));
    const auto mask = matcher.Mask();
    ASSERT_TRUE(mask.ok()) << mask.status();
    EXPECT_EQ((*mask)->count, 1);
    EXPECT_TRUE((*mask)->Allows(automatic->trigger_ids[0]));
  }
  tools.choice = "required";
  const auto forced = MakeToolTag(format_.calls(), tools, *tokenizer_);
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_TRUE(forced->trigger_ids.empty());
  EXPECT_FALSE(Takes(Compile(*forced), "No call is needed."));
}

TEST_P(ToolTagTest, RemovedToolsHaveNoCalls) {
  ChatTools tools = {.tools = {{.name = "now", .removed = true}, Log()}, .choice = "required"};
  tools.has_removed = true;
  const auto call = [this](const char* name) {
    const ChatTools one = {.tools = {{.name = name}}, .choice = "required"};
    std::mt19937 random(7);
    return Spelled(Walk(Compile(*MakeToolTag(format_.calls(), one, *tokenizer_)), random));
  };
  const auto some = Compile(*MakeToolTag(format_.calls(), tools, *tokenizer_));
  EXPECT_TRUE(Takes(some, call("log")));
  EXPECT_FALSE(Takes(some, call("now")));
  // Where no tool is left the answer is text.
  tools.tools[1].removed = true;
  tools.choice = "auto";
  const auto tag = MakeToolTag(format_.calls(), tools, *tokenizer_);
  ASSERT_TRUE(tag.ok()) << tag.status();
  EXPECT_TRUE(tag->trigger_ids.empty());
  EXPECT_TRUE(Takes(Compile(*tag), "No call."));
  EXPECT_FALSE(Takes(Compile(*tag), call("now")));
  const std::string digits = R"({"type":"regex","pattern":"[0-9]+"})";
  const auto number = Compile(*MakeToolTag(format_.calls(), tools, *tokenizer_, digits));
  EXPECT_TRUE(Takes(number, "12"));
  EXPECT_FALSE(Takes(number, "No call."));
  EXPECT_FALSE(Takes(number, call("log")));
}

INSTANTIATE_TEST_SUITE_P(Families, ToolTagTest, testing::ValuesIn(kFamilies),
                         [](const auto& info) { return std::string(info.param.name); });

struct Written {
  int family;  // in kFamilies
  const char* text;
};
const Written kWritten[] = {
    {0,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>log\n```json\n{\"text\": \"a\"}\n```"
     "<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>log\n```json\n{}\n```<"
     "｜tool▁call▁end｜>"
     "<｜tool▁calls▁end｜>"},
    {1,
     "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>log<｜tool▁sep｜>{\"text\": \"a\"}<｜tool▁call▁end｜>"
     "<｜tool▁call▁begin｜>log<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"},
    {2,
     "\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"log\">\n<｜DSML｜parameter name=\"text\" "
     "string=\"true\">a</｜DSML｜parameter>\n<｜DSML｜parameter name=\"level\" "
     "string=\"false\">3</｜DSML｜parameter>\n</｜DSML｜invoke>\n<｜DSML｜invoke "
     "name=\"log\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>"},
    {3, "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"log\">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"},
    {4,
     "<tool_call>log<arg_key>text</arg_key><arg_value>a</arg_value><arg_key>level</arg_key><arg_value>3"
     "</arg_value></tool_call><tool_call>log</tool_call>"},
    {5,
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.log:0<|tool_call_argument_begin|>{\"text\": "
     "\"a\"}<|tool_call_end|><|tool_call_begin|>functions.log:1<|tool_call_argument_begin|>{}<|tool_call_end|"
     ">"
     "<|tool_calls_section_end|>"}};

// The formats are those of the models, byte for byte (tests/server/text/chat_tools_test.cc renders them).
TEST(ToolTag, TakesCallsAsEachFamilyWritesThem) {
  for (const Written& written : kWritten) {
    const Family& family = kFamilies[written.family];
    SCOPED_TRACE(family.name);
    const auto tokenizer = family.tokenizer();
    const auto format = ChatFormat::Create(*tokenizer, family.own_format);
    const auto tag = MakeToolTag(format->calls(), {.tools = {Log()}, .choice = "required"}, *tokenizer);
    ASSERT_TRUE(tag.ok()) << tag.status();
    const auto grammar = CompileConstraint({.kind = Constraint::kStructuralTag, .source = tag->source},
                                           *MakeVocabulary(*tokenizer, kVocabSize, {kEnd}), {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    Matcher matcher(*grammar);
    const std::vector<int32_t> ids =
        *tokenizer->Encode(written.text, {.parse_special = true, .add_bos = false});
    for (size_t i = 0; i < ids.size(); ++i) ASSERT_TRUE(*matcher.Advance(ids[i])) << "token " << i;
    EXPECT_TRUE(matcher.IsAccepting());
    EXPECT_TRUE(*matcher.Advance(kEnd));
  }
}

TEST(ToolTag, NamesTheToolWhoseSchemaIsAtFault) {
  const auto tokenizer = DeepseekTokenizer(nullptr);
  Metrics metrics(MetricsOptions{.model_name = "m"});
  ConstraintCompiler compiler(*MakeVocabulary(*tokenizer, kVocabSize, {kEnd}), ConstraintsConfig{}, metrics);
  const absl::Status whole = absl::InvalidArgumentError("chat.tools: too much");
  for (const char* format : {"deepseek_r1", "deepseek_v32"}) {
    const CallSyntax calls = ChatFormat::Create(*tokenizer, format)->calls();
    ChatTools tools = {.tools = {Log(), Weather()}};
    EXPECT_EQ(NameFaultyTool(calls, tools, whole, compiler), whole);
    tools.tools[1].parameters = R"({"type":"object","properties":{"a":{"not":{"format":"date"}}}})";
    EXPECT_THAT(std::string(NameFaultyTool(calls, tools, whole, compiler).message()),
                testing::StartsWith("chat.tools[1].parameters: #/properties/a/not: "));
    tools.tools[1].parameters = R"({"type":["object","null"]})";
    EXPECT_EQ(
        MakeToolTag(calls, tools, *tokenizer).status().message(),
        "chat.tools[1].parameters: #/type: [\"object\",\"null\"], allowed \"object\" where strict is true");
    // Without a type only objects are arguments.
    tools.tools[1].parameters = R"( {"properties":{"a":{"type":"null"}}})";
    const auto tag = MakeToolTag(calls, tools, *tokenizer);
    ASSERT_TRUE(tag.ok()) << tag.status();
    EXPECT_THAT(tag->source, HasSubstr(R"({"type":"object","properties":{"a")"));
  }
}

TEST(ToolTag, NamesThatTheParametersCannotSpellAreRefused) {
  const auto tokenizer = GlmTokenizer();
  const CallSyntax calls = ChatFormat::Create(*tokenizer)->calls();
  Metrics metrics(MetricsOptions{.model_name = "m"});
  ConstraintCompiler compiler(*MakeVocabulary(*tokenizer, kVocabSize, {kEnd}), ConstraintsConfig{}, metrics);
  ChatTools tools = {.tools = {{.name = "f", .parameters = R"({"properties":{"a<b":{}, "c":{}}})"}},
                     .choice = "required"};
  // Any object: without the property.
  EXPECT_THAT(MakeToolTag(calls, tools, *tokenizer)->source,
              HasSubstr(R"("properties":{"c":{}},"required":[])"));
  tools.tools[0].strict = true;
  const auto tag = MakeToolTag(calls, tools, *tokenizer);
  const absl::Status whole =
      compiler.Compile({.kind = Constraint::kStructuralTag, .source = tag->source}, "chat.tool_choice")
          .status();
  EXPECT_EQ(NameFaultyTool(calls, tools, whole, compiler).message(),
            "chat.tools[0].parameters: #: the property \"a<b\" is not supported in this style, allowed names "
            "without quotes, angle brackets, line breaks and outer spaces");
}

// A schema that cannot be kept still says which of its properties a call must have.
TEST(ToolTag, ForcedCallsHaveWhatTheirToolsRequire) {
  const auto tokenizer = GlmTokenizer();
  const CallSyntax calls = ChatFormat::Create(*tokenizer)->calls();
  Metrics metrics(MetricsOptions{.model_name = "m"});
  const auto vocabulary = *MakeVocabulary(*tokenizer, kVocabSize, {kEnd});
  ConstraintCompiler compiler(vocabulary, ConstraintsConfig{}, metrics);
  for (const char* parameters :
       {R"({"type":"object","properties":{"o":{},"t":{"$dynamicRef":"#a"}},"required":["t","x"]})",
        R"({"properties":{"o":{},"t":{}},"required":["t"],"$dynamicRef":"#a"})"}) {
    ChatTools tools = {.tools = {{.name = "f", .parameters = parameters}}, .choice = "required"};
    tools = WithKeptSchemas(calls, tools, compiler);
    ASSERT_FALSE(tools.tools[0].strict) << parameters;
    const auto tag = MakeToolTag(calls, tools, *tokenizer);
    ASSERT_TRUE(tag.ok()) << tag.status();
    const auto grammar =
        CompileConstraint({.kind = Constraint::kStructuralTag, .source = tag->source}, vocabulary, {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const auto takes = [&](const std::string& text) {
      Matcher matcher(*grammar);
      const auto ids = tokenizer->Encode(text, {.parse_special = true, .add_bos = false});
      for (const int32_t id : *ids) {
        if (!*matcher.Advance(id)) return false;
      }
      return matcher.IsAccepting();
    };
    const std::string t = "<arg_key>t</arg_key><arg_value>[]</arg_value>";
    EXPECT_TRUE(takes("<tool_call>f" + t + "</tool_call>"));
    EXPECT_TRUE(takes("<tool_call>f<arg_key>o</arg_key><arg_value>1</arg_value>" + t + "</tool_call>"));
    EXPECT_FALSE(takes("<tool_call>f</tool_call>"));
    EXPECT_FALSE(takes("<tool_call>f<arg_key>o</arg_key><arg_value>1</arg_value></tool_call>"));
  }
}

TEST(ToolTag, ForcedCallsFollowTheSchemasThatCanBeKept) {
  const auto tokenizer = GlmTokenizer();
  const CallSyntax calls = ChatFormat::Create(*tokenizer)->calls();
  Metrics metrics(MetricsOptions{.model_name = "m"});
  ConstraintCompiler compiler(*MakeVocabulary(*tokenizer, kVocabSize, {kEnd}), ConstraintsConfig{}, metrics);
  ChatTools tools = {
      .tools = {{.name = "kept", .parameters = R"({"type":"object","properties":{"a":{"type":"integer"}}})"},
                {.name = "any",
                 .parameters = R"({"type":"object","properties":{"a":{"not":{"format":"date"}}}})"}},
      .choice = "required"};
  const ChatTools forced = WithKeptSchemas(calls, tools, compiler);
  EXPECT_TRUE(forced.tools[0].strict);
  EXPECT_FALSE(forced.tools[1].strict);
  EXPECT_THAT(MakeToolTag(calls, forced, *tokenizer)->source, HasSubstr(R"("a":{"type":"integer"})"));
  tools.choice = "auto";
  EXPECT_FALSE(WithKeptSchemas(calls, tools, compiler).tools[0].strict);
  tools.choice = "function:any";
  EXPECT_FALSE(WithKeptSchemas(calls, tools, compiler).tools[0].strict) << "it is not offered";
}

}  // namespace
}  // namespace foredraft
