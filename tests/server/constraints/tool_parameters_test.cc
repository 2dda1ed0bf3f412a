// Calls of one tool in the formats that write one parameter after the other: what the tag allows, and what
// the client gets of it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "server/constraints/tool_tag.h"
#include "server/text/answer_parser.h"
#include "server/text/chat_format.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 400;
constexpr int32_t kEnd = 399;  // the models' end of text

// The forced call of one tool, in DSML and in GLM's format.
class OneToolTest : public testing::TestWithParam<bool> {
 protected:
  bool is_glm() const { return GetParam(); }
  ChatTools Forced(const char* parameters, bool strict) {
    ChatTools tools = {.tools = {{.name = "f", .parameters = parameters, .strict = strict}},
                       .choice = "required"};
    return WithKeptSchemas(format_.calls(), tools, compiler_);
  }
  // A call with the parameters, each a name and a value; those of values that begin with '=' are raw strings.
  std::string Call(const std::vector<std::pair<std::string, std::string>>& parameters) const {
    std::string text = is_glm() ? "<tool_call>f" : "\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"f\">\n";
    for (const auto& [name, value] : parameters) {
      const bool is_string = value.starts_with('=');
      const std::string plain = value.substr(is_string ? 1 : 0);
      text += is_glm() ? "<arg_key>" + name + "</arg_key><arg_value>" + plain + "</arg_value>"
                       : "<｜DSML｜parameter name=\"" + name + "\" string=\"" +
                             (is_string ? "true" : "false") + "\">" + plain + "</｜DSML｜parameter>\n";
    }
    return text + (is_glm() ? "</tool_call>" : "</｜DSML｜invoke>\n</｜DSML｜tool_calls>");
  }
  // The arguments of the call as a client gets them; empty where the tag does not take it.
  std::string Arguments(const ChatTools& tools, const std::string& text) {
    const auto tag = MakeToolTag(format_.calls(), tools, *tokenizer_);
    EXPECT_TRUE(tag.ok()) << tag.status();
    const auto grammar =
        CompileConstraint({.kind = Constraint::kStructuralTag, .source = tag->source}, vocabulary_, {});
    EXPECT_TRUE(grammar.ok()) << grammar.status() << tag->source;
    if (!grammar.ok()) return "";
    Matcher matcher(*grammar);
    std::string marked;
    const auto ids = tokenizer_->Encode(text, {.parse_special = true, .add_bos = false});
    for (const int32_t id : *ids) {
      if (!*matcher.Advance(id)) return "";
      const int mark = format_.answers().MarkOf(id);
      marked += mark >= 0 ? MarkText(mark) : std::string(tokenizer_->TokenBytes(id));
    }
    if (!matcher.IsAccepting()) return "";
    AnswerParser parser({.syntax = &format_.answers(), .tools = tools.tools, .id_prefix = "call"});
    AnswerDelta delta;
    parser.Feed(marked, delta);
    parser.End(delta);
    EXPECT_EQ(parser.complete_calls(), 1) << text;
    return delta.calls.empty() ? "" : delta.calls[0].arguments;
  }

  const std::unique_ptr<Tokenizer> tokenizer_ = is_glm() ? GlmTokenizer() : DeepseekTokenizer(nullptr);
  const ChatFormat format_ = *ChatFormat::Create(*tokenizer_, is_glm() ? "" : "deepseek_v4");
  const std::shared_ptr<const Vocabulary> vocabulary_ = *MakeVocabulary(*tokenizer_, kVocabSize, {kEnd});
  Metrics metrics_{MetricsOptions{.model_name = "m"}};
  ConstraintCompiler compiler_{vocabulary_, ConstraintsConfig{}, metrics_};
};

TEST_P(OneToolTest, ADictionaryHasAnyProperties) {
  const std::string call = Call({{"New York", "=a \"b\""}, {"größe", "[1, {}]"}, {"x.y", "null"}});
  const std::string read = R"({"New York": "a \"b\"", "größe": [1, {}], "x.y": null})";
  for (const char* parameters :
       {R"({"type":"object"})", R"({"type":"object","additionalProperties":true})",
        R"({"type":"object","properties":{},"additionalProperties":{}})",
        R"({"$ref":"#/$defs/d","$defs":{"d":{"additionalProperties":{}}}})",
        // Not kept, so that the arguments may be any.
        R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":2})",
        R"({"type":"object","propertyNames":{"pattern":"^a"}})"}) {
    SCOPED_TRACE(parameters);
    const ChatTools tools = Forced(parameters, /*strict=*/false);
    EXPECT_EQ(Arguments(tools, call), read);
    EXPECT_EQ(Arguments(tools, Call({})), "{}");
    EXPECT_EQ(Arguments(tools, Call({{"a", "1"}, {"a", "2"}})), R"({"a": 1, "a": 2})") << "keys may repeat";
    for (const char* name : {"", " a", "a ", "a<b", "a\nb"}) {
      EXPECT_EQ(Arguments(tools, Call({{name, "1"}})), "") << name;
    }
  }
  // What says that it has no properties has none.
  for (const char* parameters : {"", R"({"type":"object","properties":{}})",
                                 R"({"type":"object","properties":{},"additionalProperties":false})"}) {
    for (const bool strict : {false, true}) {
      EXPECT_EQ(Arguments(Forced(parameters, strict), Call({{"a", "1"}})), "") << parameters;
      EXPECT_EQ(Arguments(Forced(parameters, strict), Call({})), "{}") << parameters;
    }
  }
}

TEST_P(OneToolTest, ADictionaryKeepsTheSchemaOfItsValues) {
  for (const bool strict : {false, true}) {
    const ChatTools integers =
        Forced(R"({"type":"object","additionalProperties":{"type":"integer"}})", strict);
    EXPECT_EQ(Arguments(integers, Call({{"a", "1"}, {"b", "2"}})), R"({"a": 1, "b": 2})");
    EXPECT_EQ(Arguments(integers, Call({{"a", "=x"}})), "");
    EXPECT_EQ(Arguments(integers, Call({{"a", "[]"}})), "");
    for (const char* strings :
         {R"({"additionalProperties":{"type":"string"}})",
          R"({"additionalProperties":{"$ref":"#/$defs/s"},"$defs":{"s":{"type":"string"}}})"}) {
      EXPECT_EQ(Arguments(Forced(strings, strict), Call({{"a", "=12"}, {"b", "=null"}})),
                R"({"a": "12", "b": "null"})");
    }
  }
}

// What the grammar writes as a raw string is read as one, wherever the schema says what it is.
TEST_P(OneToolTest, StringsBehindReferencesAndUnionsAreStrings) {
  const ChatTools tools = Forced(
      R"({"type":"object","properties":{
            "zip":{"$ref":"#/$defs/Zip"},"level":{"allOf":[{"$ref":"#/$defs/Level"}]},
            "flag":{"anyOf":[{"$ref":"#/$defs/Flag"},{"type":"null"}]},"mixed":{"enum":["7",8]},
            "again":{"$ref":"#/$defs/Loop"}},
          "required":["zip","level","flag","mixed"],
          "$defs":{"Zip":{"type":"string","pattern":"^[0-9]{5}$"},"Level":{"enum":["1","2"]},
                   "Flag":{"enum":["true","false"]},"Loop":{"anyOf":[{"type":"string"},{"type":"array","items":{"$ref":"#/$defs/Loop"}}]}}})",
      /*strict=*/true);
  EXPECT_EQ(Arguments(tools, Call({{"zip", "=94107"},
                                   {"level", "=1"},
                                   {"flag", "=true"},
                                   {"mixed", "=7"},
                                   {"again", "[\"a\"]"}})),
            R"({"zip": "94107", "level": "1", "flag": "true", "mixed": "7", "again": ["a"]})");
  EXPECT_EQ(Arguments(tools, Call({{"zip", "=94107"}, {"level", "=2"}, {"flag", "null"}, {"mixed", "8"}})),
            R"({"zip": "94107", "level": "2", "flag": null, "mixed": 8})");
}

INSTANTIATE_TEST_SUITE_P(Formats, OneToolTest, testing::Bool(),
                         [](const auto& info) { return info.param ? "glm" : "dsml"; });

}  // namespace
}  // namespace foredraft
