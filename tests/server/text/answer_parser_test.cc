#include "server/text/answer_parser.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "server/text/chat_format.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

using testing::IsEmpty;

// What a parser has made of an answer; calls as "id name arguments", with "..." behind those that are not
// complete.
struct Parsed {
  std::string thinking;
  std::string text;
  std::vector<std::string> calls;
  int complete = 0;
  bool broken = false;

  bool operator==(const Parsed&) const = default;
};

std::vector<ChatTool> Tools() {
  return {{.name = "get_weather",
           .parameters = R"({"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer"},
                             "unit":{"enum":["c","f"]},"note":{"type":["string","null"]},
                             "place":{"anyOf":[{"type":"string"},{"type":"number"}]}}})"},
          {.name = "now"}};
}

// A family's tokenizer, with its calls as added tokens or spelled out in bytes.
struct Family {
  const char* name;
  const char* own_format;
  std::unique_ptr<Tokenizer> tokenizer;
  bool has_call_tokens = true;
};

std::vector<Family> Families() {
  std::vector<Family> families;
  for (const bool tokens : {true, false}) {
    families.push_back({"r1", "deepseek_r1", DeepseekTokenizer(nullptr, tokens), tokens});
    families.push_back({"v31", "", DeepseekTokenizer(kV31Template, tokens), tokens});
    families.push_back({"v32", "deepseek_v32", DeepseekTokenizer(nullptr, tokens), tokens});
    families.push_back({"v4", "deepseek_v4", DeepseekTokenizer(nullptr, tokens), tokens});
    families.push_back({"glm", "", GlmTokenizer(tokens), tokens});
  }
  families.push_back({"kimi", "", KimiTokenizer()});
  return families;
}

class Reader {
 public:
  explicit Reader(const Family& family)
      : tokenizer_(*family.tokenizer), format_(*ChatFormat::Create(tokenizer_, family.own_format)) {}

  // Reads the output that `written` spells out, its added tokens as tokens, in pieces of up to
  // `most` tokens (0: in one).
  Parsed Read(const std::string& written, unsigned most = 0, unsigned seed = 0, bool parallel = true,
              bool thinks = false) {
    AnswerParser parser({.syntax = &format_.answers(),
                         .begins_in_thinking = thinks,
                         .tools = Tools(),
                         .parallel_calls = parallel,
                         .id_prefix = "call"});
    std::mt19937 random(seed);
    OutputSoFar so_far;
    std::string piece;
    size_t left = 0;
    for (const std::string& element : Marked(written)) {
      piece += element;
      if (most == 0) continue;
      if (left == 0) left = 1 + random() % most;
      if (--left == 0) so_far.Feed(parser, std::exchange(piece, ""));
    }
    so_far.Feed(parser, piece);
    AnswerDelta last;
    parser.End(last);
    so_far.Add(std::move(last));
    return so_far.Result(parser);
  }

 private:
  struct OutputSoFar {
    AnswerDelta whole;

    void Add(AnswerDelta delta) {
      whole.thinking += delta.thinking;
      whole.text += delta.text;
      AppendCalls(whole.calls, std::move(delta.calls));
    }
    void Feed(AnswerParser& parser, const std::string& piece) {
      AnswerDelta delta;
      parser.Feed(piece, delta);
      Add(std::move(delta));
    }
    Parsed Result(const AnswerParser& parser) const {
      Parsed parsed = {.thinking = whole.thinking,
                       .text = whole.text,
                       .complete = parser.complete_calls(),
                       .broken = parser.has_broken_call()};
      for (const CallDelta& call : whole.calls) {
        parsed.calls.push_back(call.id + " " + call.name + " " + call.arguments +
                               (call.complete ? "" : "..."));
      }
      return parsed;
    }
  };

  // A token each: its mark, or a character.
  std::vector<std::string> Marked(const std::string& written) {
    std::vector<std::string> elements;
    std::string character;
    const auto ids = tokenizer_.Encode(written, {.parse_special = true, .add_bos = false});
    EXPECT_TRUE(ids.ok()) << ids.status();
    for (const int32_t id : *ids) {
      const int mark = id == tokenizer_.AddedTokenId("<think>")    ? kBeginThinkingMark
                       : id == tokenizer_.AddedTokenId("</think>") ? kEndThinkingMark
                                                                   : format_.answers().MarkOf(id);
      if (mark >= 0) {
        elements.push_back(MarkText(mark));
        continue;
      }
      character += tokenizer_.TokenBytes(id);
      if (IsValidUtf8(character)) elements.push_back(std::exchange(character, ""));
    }
    return elements;
  }

  const Tokenizer& tokenizer_;
  const ChatFormat format_;
};

// Two calls as each family writes them, with `city` as the first one's string.
std::string TwoCalls(const std::string& family, const std::string& city) {
  const std::string json = "{\"city\": \"" + city + "\", \"days\": 2}";
  if (family == "r1") {
    return "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n" + json +
           "\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{}\n```"
           "<｜tool▁call▁end｜><｜tool▁calls▁end｜>";
  }
  if (family == "v31") {
    return "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>" + json +
           "<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{}<｜tool▁call▁end｜><"
           "｜tool▁calls▁end｜>";
  }
  if (family == "kimi") {
    return "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|"
           ">" +
           json +
           "<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|"
           ">"
           "<|tool_calls_section_end|>";
  }
  if (family == "glm") {
    return "<tool_call>get_weather<arg_key>city</arg_key><arg_value>" + city +
           "</arg_value><arg_key>days</arg_key><arg_value>2</arg_value></tool_call><tool_call>now</"
           "tool_call>";
  }
  const std::string block = family == "v32" ? "function_calls" : "tool_calls";
  return "\n\n<｜DSML｜" + block +
         ">\n<｜DSML｜invoke name=\"get_weather\">\n<｜DSML｜parameter name=\"city\" string=\"true\">" +
         city +
         "</｜DSML｜parameter>\n<｜DSML｜parameter name=\"days\" string=\"false\">2</｜DSML｜parameter>\n"
         "</｜DSML｜invoke>\n<｜DSML｜invoke name=\"now\">\n\n</｜DSML｜invoke>\n</｜DSML｜" +
         block + ">";
}

Parsed ExpectedCalls(const std::string& family, const std::string& text) {
  const std::string first = family == "kimi" ? "functions.get_weather:0" : "call_0";
  const std::string second = family == "kimi" ? "functions.now:1" : "call_1";
  return {.text = text,
          .calls = {first + " get_weather {\"city\": \"Zürich <1>\", \"days\": 2}", second + " now {}"},
          .complete = 2};
}

TEST(AnswerParser, ReadsTheCallsOfEachFamily) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    Reader reader(family);
    const std::string calls = TwoCalls(family.name, "Zürich <1>");
    EXPECT_EQ(reader.Read(calls), ExpectedCalls(family.name, ""));
    EXPECT_EQ(reader.Read("Let me look." + calls + "\n"), ExpectedCalls(family.name, "Let me look."));
    EXPECT_EQ(reader.Read("a" + calls + "\n b"), ExpectedCalls(family.name, "a\n b"));
    if (family.name == std::string("glm") || family.name == std::string("kimi"))
      continue;  // calls end thoughts
    // The thought before is no text, and what looks like a call in it is none.
    Parsed thought = ExpectedCalls(family.name, "x");
    const Parsed read = reader.Read(calls + "</think>x" + calls, 0, 0, true, /*thinks=*/true);
    thought.thinking = read.thinking;
    EXPECT_EQ(read, thought);
    EXPECT_THAT(read.thinking, testing::HasSubstr("get_weather"));
  }
}

TEST(AnswerParser, TheResultDoesNotDependOnThePieces) {
  std::mt19937 random(7);
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    Reader reader(family);
    const std::string calls = "Hm.\n\n" + TwoCalls(family.name, "a\\n`<b>`") + "\n\n```\n";
    for (int trial = 0; trial < 60; ++trial) {
      // Whole, cut short, and with a character in the wrong place.
      std::string written = calls;
      const size_t at = random() % written.size();
      if (trial % 3 == 1) written.resize(at);
      if (trial % 3 == 2) written[at] = "x \n<`}"[random() % 6];
      written.resize(FirstInvalidUtf8(written));
      const Parsed whole = reader.Read(written);
      for (const unsigned most : {1, 3, 17}) {
        const unsigned seed = random();
        const Parsed pieces = reader.Read(written, most, seed);
        EXPECT_EQ(pieces, whole) << "trial " << trial << ", pieces of " << most << ", seed " << seed << ":\n"
                                 << written << "\n-- " << pieces.text << "\n-- " << whole.text;
      }
    }
  }
}

TEST(AnswerParser, WhiteSpaceBeforeTheFirstCallIsNoText) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    Reader reader(family);
    const std::string calls = TwoCalls(family.name, "b");
    for (const unsigned most : {0, 1}) {
      EXPECT_EQ(reader.Read("\n\n \t" + calls, most).text, "");
      Parsed thought = reader.Read("a</think>\n\n" + calls, most, 0, true, /*thinks=*/true);
      EXPECT_EQ(thought.text, "");
      EXPECT_EQ(thought.complete, 2);
      // Before text, or with nothing behind it, it is the answer's.
      EXPECT_EQ(reader.Read("\n\nHm." + calls, most).text, "\n\nHm.");
      EXPECT_EQ(reader.Read("\n\n", most).text, "\n\n");
      std::string unknown = calls;
      unknown.replace(unknown.find("get_weather"), 11, "x");
      EXPECT_EQ(reader.Read("\n\n" + unknown, most).text.substr(0, 2), "\n\n") << "no call follows";
    }
  }
}

// GLM begins calls within a thought at times. What only looks like one stays thinking.
TEST(AnswerParser, ACallOfGlmEndsAThought) {
  for (const Family& family : Families()) {
    if (std::string(family.name) != "glm") continue;
    Reader reader(family);
    const std::string call =
        "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</arg_value></tool_call>";
    for (const unsigned most : {0, 1, 3}) {
      const Parsed read = reader.Read("Hm." + call + "</think>b", most, 0, true, /*thinks=*/true);
      EXPECT_EQ(read.thinking, "Hm.");
      EXPECT_THAT(read.calls, testing::ElementsAre("call_0 get_weather {\"city\": \"a\"}"));
      EXPECT_EQ(read.complete, 1);
      EXPECT_EQ(read.text, "b");
      const Parsed unknown =
          reader.Read("Hm.<tool_call>nothing<arg_key>k</arg_key>x</think>b", most, 0, true, /*thinks=*/true);
      EXPECT_EQ(unknown.thinking,
                family.has_call_tokens ? "Hm.nothingkx" : "Hm.<tool_call>nothing<arg_key>k</arg_key>x");
      EXPECT_EQ(unknown.text, "b");
      EXPECT_THAT(unknown.calls, IsEmpty());
      const Parsed cut = reader.Read("Hm.<tool_call>get_wea", most, 0, true, /*thinks=*/true);
      EXPECT_EQ(cut.thinking.substr(0, 3), "Hm.");
      EXPECT_THAT(cut.calls, IsEmpty());
    }
  }
}

TEST(AnswerParser, BrokenCallsAreText) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    Reader reader(family);
    std::string unknown = TwoCalls(family.name, "a");
    for (size_t at; (at = unknown.find("get_weather")) != std::string::npos;)
      unknown.replace(at, 11, "got_weather");
    const Parsed read = reader.Read("a" + unknown);
    EXPECT_THAT(read.calls, IsEmpty());
    EXPECT_TRUE(read.broken);
    EXPECT_THAT(read.text, testing::HasSubstr("got_weather"));
    EXPECT_THAT(read.text, testing::StartsWith("a"));
  }
}

TEST(AnswerParser, AnswersThatEndWithinACallHaveItAsFarAsItCame) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    Reader reader(family);
    const std::string calls = TwoCalls(family.name, "Zürich");
    const Parsed read = reader.Read(calls.substr(0, calls.find("rich")));
    ASSERT_EQ(read.calls.size(), 1u);
    EXPECT_THAT(read.calls[0], testing::EndsWith("get_weather {\"city\": \"Zü..."));
    EXPECT_EQ(read.complete, 0);
    EXPECT_FALSE(read.broken);
  }
}

TEST(AnswerParser, WithoutParallelCallsTheFirstIsTheLast) {
  for (const Family& family : Families()) {
    SCOPED_TRACE(family.name);
    const Parsed read =
        Reader(family).Read("a" + TwoCalls(family.name, "b") + " c", 1, 0, /*parallel=*/false);
    ASSERT_EQ(read.calls.size(), 1u);
    EXPECT_THAT(read.calls[0], testing::EndsWith("get_weather {\"city\": \"b\", \"days\": 2}"));
    EXPECT_EQ(read.text, "a");
    EXPECT_EQ(read.complete, 1);
  }
}

struct Case {
  const char* name;
  const char* family;
  std::string written;
  Parsed expected;
};

const std::string kV31Begin = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>";
const std::string kDsmlBegin = "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"now\">\n";
const Case kAskew[] = {
    {"a value without its marks",
     "glm",
     "<tool_call>get_weather<arg_key>city</arg_key>New York</tool_call>",
     {.calls = {"call_0 get_weather {\"city\": \"New York\"}"}, .complete = 1}},
    {"a value without the mark in front",
     "glm",
     "<tool_call>get_weather<arg_key>city</arg_key>\nParis</arg_value><arg_key>days</arg_key>2</tool_call>",
     {.calls = {"call_0 get_weather {\"city\": \"Paris\", \"days\": 2}"}, .complete = 1}},
    {"values without marks, one behind the other",
     "glm",
     "<tool_call>get_weather<arg_key>days</arg_key>2<arg_key>city</arg_key>Paris</tool_call>",
     {.calls = {"call_0 get_weather {\"days\": 2, \"city\": \"Paris\"}"}, .complete = 1}},
    {"no value at all",
     "glm",
     "<tool_call>get_weather<arg_key>city</arg_key></tool_call>",
     {.calls = {"call_0 get_weather ..."}}},
    {"an id without its first part",
     "kimi",
     "<|tool_calls_section_begin|><|tool_call_begin|>now:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
     "<|tool_calls_section_end|>",
     {.calls = {"now:0 now {}"}, .complete = 1}},
    {"an id without its last part",
     "kimi",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.now<|tool_call_argument_begin|>{}<|tool_call_"
     "end|>"
     "<|tool_calls_section_end|>",
     {.calls = {"functions.now now {}"}, .complete = 1}},
    {"an id that is a number alone",
     "kimi",
     "<|tool_calls_section_begin|><|tool_call_begin|>7<|tool_call_argument_begin|>{}<|tool_call_end|>",
     {.text = "7{}", .broken = true}},
    {"white space round JSON",
     "v31",
     kV31Begin + "now<｜tool▁sep｜>\n {\"a\":1}\n<｜tool▁call▁end｜>",
     {.calls = {"call_0 now {\"a\":1}"}, .complete = 1}},
    {"no arguments",
     "v31",
     kV31Begin + "now<｜tool▁sep｜><｜tool▁call▁end｜>",
     {.calls = {"call_0 now {}"}, .complete = 1}},
    {"the section ends within a call",
     "v31",
     kV31Begin + "now<｜tool▁sep｜>{\"a\":<｜tool▁calls▁end｜>b",
     {.text = "b", .calls = {"call_0 now {\"a\":..."}}},
    {"thinking's tags within arguments",
     "v31",
     kV31Begin + "now<｜tool▁sep｜>{\"a\":\"<think>\"}<｜tool▁call▁end｜>",
     {.calls = {"call_0 now {\"a\":\"<think>\"}"}, .complete = 1}},
    {"an empty section",
     "v31",
     "a<｜tool▁calls▁begin｜><｜tool▁calls▁end｜>b",
     {.text = "ab", .broken = true}},
    {"a second section",
     "v31",
     kV31Begin + "now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>\na" + kV31Begin +
         "now<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
     {.text = "\na", .calls = {"call_0 now {}", "call_1 now {}"}, .complete = 2}},
    {"text between calls",
     "v31",
     kV31Begin + "now<｜tool▁sep｜>{}<｜tool▁call▁end｜> and <｜tool▁call▁begin｜>now",
     {.text = " and now", .calls = {"call_0 now {}"}, .complete = 1, .broken = true}},
    {"other values",
     "v4",
     kDsmlBegin +
         "<｜DSML｜parameter name=\"a\" string=\"false\">[1, true]</｜DSML｜parameter>\n<｜DSML｜parameter "
         "name=\"b\\\" string=\"false\">not json</｜DSML｜parameter>\n<｜DSML｜parameter name=\"c\" "
         "string=\"true\"></｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
     {.calls = {"call_0 now {\"a\": [1, true], \"b\\\\\": \"not json\", \"c\": \"\"}"}, .complete = 1}},
    {"an argument twice",
     "v4",
     kDsmlBegin + "<｜DSML｜parameter name=\"a\" string=\"false\">1</｜DSML｜parameter>\n<｜DSML｜parameter "
                  "name=\"a\" "
                  "string=\"false\">",
     {.text = "a\" string=\"false\">", .calls = {"call_0 now {\"a\": 1..."}}},
    {"a flag that is none",
     "v4",
     kDsmlBegin + "<｜DSML｜parameter name=\"a\" string=\"no\">1",
     {.text = "a\" string=\"no\">1", .calls = {"call_0 now ..."}}},
    {"other blocks", "v4", "a\n\n<｜DSML｜function_calls>", {.text = "a\n\n<function_calls>"}},
    {"the types of a schema",
     "glm",
     "<tool_call>get_weather<arg_key>city</arg_key><arg_value>12</arg_value><arg_key>days</"
     "arg_key><arg_value>3"
     "</arg_value><arg_key>unit</arg_key><arg_value>c</arg_value><arg_key>other</"
     "arg_key><arg_value>{\"a\": "
     "1}</arg_value><arg_key>free</arg_key><arg_value>a \"b\"</arg_value></tool_call>",
     {.calls = {"call_0 get_weather {\"city\": \"12\", \"days\": 3, \"unit\": \"c\", \"other\": {\"a\": 1}, "
                "\"free\": \"a \\\"b\\\"\"}"},
      .complete = 1}},
    {"GLM-4.5's line breaks",
     "glm",
     "\n<tool_call>now\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>\n<tool_call>now\n</"
     "tool_call>",
     {.calls = {"call_0 now {\"a\": 1}", "call_1 now {}"}, .complete = 2}},
    {"an id that is a name alone",
     "kimi",
     "<|tool_calls_section_begin|><|tool_call_begin|>now<|tool_call_argument_begin|>{}<|tool_call_end|>",
     {.calls = {"now now {}"}, .complete = 1}},
};

TEST(AnswerParser, ReadsWhatModelsWriteAskew) {
  for (const Family& family : Families()) {
    if (!family.has_call_tokens) continue;  // markup that is spelled out in bytes would be shown
    Reader reader(family);
    for (const Case& one : kAskew) {
      if (std::string_view(one.family) != family.name) continue;
      SCOPED_TRACE(one.name);
      const Parsed read = reader.Read(one.written);
      EXPECT_EQ(read.text, one.expected.text);
      EXPECT_EQ(read.calls, one.expected.calls);
      EXPECT_EQ(read.complete, one.expected.complete);
      EXPECT_EQ(read.broken, one.expected.broken);
    }
  }
}

TEST(AnswerParser, WithoutToolsNothingIsACall) {
  const auto tokenizer = DeepseekTokenizer(kV31Template);
  const ChatFormat format = *ChatFormat::Create(*tokenizer);
  AnswerParser parser({.syntax = &format.answers(), .begins_in_thinking = true});
  AnswerDelta delta;
  const std::string begin = format.answers().calls().begin;
  parser.Feed("a" + begin + MarkText(kBeginThinkingMark) + MarkText(kEndThinkingMark) + "b" + begin + "c" +
                  MarkText(kBeginThinkingMark) + "d",
              delta);
  EXPECT_EQ(delta.thinking, "ad");
  EXPECT_EQ(delta.text, "bc");
  EXPECT_THAT(delta.calls, IsEmpty());
}

// Arguments come while the call is open, and nothing waits that need not.
TEST(AnswerParser, PassesArgumentsOnAsTheyCome) {
  const auto tokenizer = DeepseekTokenizer(kV31Template);
  const ChatFormat format = *ChatFormat::Create(*tokenizer);
  const CallSyntax& calls = format.answers().calls();
  AnswerParser parser({.syntax = &format.answers(), .tools = Tools(), .id_prefix = "call"});
  const auto feed = [&](const std::string& piece) {
    AnswerDelta delta;
    parser.Feed(piece, delta);
    return delta;
  };
  EXPECT_EQ(feed("text").text, "text");
  EXPECT_THAT(feed(calls.begin + calls.call + "no").calls, IsEmpty());
  const AnswerDelta announced = feed("w" + calls.name_end);
  ASSERT_EQ(announced.calls.size(), 1u);
  EXPECT_EQ(announced.calls[0].name, "now");
  EXPECT_EQ(feed("{\"a\": ").calls[0].arguments, "{\"a\":");
  EXPECT_EQ(feed("1").calls[0].arguments, " 1");
  const AnswerDelta end = feed("}\n" + calls.call_end);
  EXPECT_EQ(end.calls[0].arguments, "}");
  EXPECT_TRUE(end.calls[0].complete);
  EXPECT_FALSE(end.calls[0].is_first());
}

// GLM's format does not tell strings from other values: the schema does.
TEST(AnswerParser, AValueOfATypeThatTheSchemaExcludesIsAString) {
  for (const Family& family : Families()) {
    if (std::string(family.name) != "glm") continue;
    const auto argument = [&](const std::string& key, const std::string& value) {
      const Parsed parsed = Reader(family).Read("<tool_call>get_weather<arg_key>" + key +
                                                "</arg_key><arg_value>" + value + "</arg_value></tool_call>");
      return parsed.calls.at(0).substr(std::string("call_0 get_weather ").size());
    };
    EXPECT_EQ(argument("note", "12"), R"({"note": "12"})");
    EXPECT_EQ(argument("note", "null"), R"({"note": null})");
    EXPECT_EQ(argument("note", "[1]"), R"({"note": "[1]"})");
    EXPECT_EQ(argument("place", "12"), R"({"place": 12})");
    EXPECT_EQ(argument("place", "true"), R"({"place": "true"})");
    EXPECT_EQ(argument("city", "12"), R"({"city": "12"})");
    EXPECT_EQ(argument("days", "x"), R"({"days": "x"})");
    EXPECT_EQ(argument("unknown", "12"), R"({"unknown": 12})");
  }
}

}  // namespace
}  // namespace foredraft
