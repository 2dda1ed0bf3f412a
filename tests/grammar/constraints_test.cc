// Regular expressions, choices, GBNF and structural tags.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "grammar/compile.h"
#include "tests/grammar/small_vocabulary.h"

namespace foredraft {
namespace {

const std::shared_ptr<const Vocabulary>& Bytes() {
  static const auto vocabulary = SmallVocabulary({});
  return vocabulary;
}
constexpr int32_t kTokenA = 256, kTokenB = 257, kEnd = 258;  // <a>, <b>, <end> of the small vocabulary

// "\1" stands for the token <a>, "\2" for <b>; every other byte is its own token.
std::string Try(const std::shared_ptr<const Grammar>& grammar, const std::string& text) {
  Matcher matcher(grammar);
  for (size_t i = 0; i < text.size(); ++i) {
    const int32_t id = text[i] == '\1' ? kTokenA : text[i] == '\2' ? kTokenB : static_cast<uint8_t>(text[i]);
    const auto taken = matcher.Advance(id);
    if (!taken.ok()) return taken.status().ToString();
    if (!*taken) return "refused at " + std::to_string(i);
  }
  return matcher.IsAccepting() ? "accepted" : "incomplete";
}

struct Case {
  const char* name;
  Constraint constraint;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class Constraints : public testing::TestWithParam<Case> {};

TEST_P(Constraints, TakeTheirLanguage) {
  const auto grammar = CompileConstraint(GetParam().constraint, Bytes(), {});
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const std::string& text : GetParam().valid) EXPECT_EQ(Try(*grammar, text), "accepted") << text;
  for (const std::string& text : GetParam().invalid) EXPECT_NE(Try(*grammar, text), "accepted") << text;
}

Constraint Of(Constraint::Kind kind, std::string source) {
  return {.kind = kind, .source = std::move(source)};
}
Constraint Expression(std::string source) { return Of(Constraint::kRegex, std::move(source)); }
Constraint Gbnf(std::string source) { return Of(Constraint::kGbnf, std::move(source)); }
Constraint Tag(std::string source) { return Of(Constraint::kStructuralTag, std::move(source)); }

const Case kCases[] = {
    {"regex: alternatives and groups",
     Expression("a(?:b|(?<n>c))*|d?"),
     {"a", "abcb", "d", ""},
     {"ad", "b", "dd"}},
    {"regex: counts",
     Expression("(ab){2,3}c{0}d{2,}"),
     {"ababdd", "abababddd"},
     {"abdd", "ababd", "ababcdd"}},
    {"regex: classes",
     Expression("[^a-c\\d\\-][\\]x-]\\w\\S."),
     {"d]a!z", "\xC3\xA9-_\xE2\x82\xAC "},
     {"a]a!z", "d]a \n", "5xaaa"}},
    {"regex: escapes",
     Expression("\\x41\\u00e9\\u{1F600}\\ud83d\\ude00\\t\\."),
     {"A\xC3\xA9\xF0\x9F\x98\x80\xF0\x9F\x98\x80\t."},
     {"A"}},
    {"regex: general categories",
     Expression("\\p{Lu}\\p{Uppercase_Letter}?[\\p{gc=Nd}_]\\P{L}"),
     {"A1!", "\xC3\x89\xCE\xA9_\xE2\x82\xAC", "\xF0\x90\x90\x80\xD9\xA1 "},
     {"a1!", "A1b", "AB!", "A1\xCD\xB8"}},  // U+0378 is no character, nor sure to be none
    {"regex: classes without categories",
     Expression("[^\\p{L}\\d][^\\P{N}]"),
     {"!1", "\xE2\x82\xAC\xC2\xBD"},
     {"a1", "11", "!a", "\u03781", "!\u0378"}},
    {"regex: anchors at the edges", Expression("^a$|^(b|c)$"), {"a", "b", "c"}, {"ab"}},
    {"regex: lazy", Expression("a+?b??"), {"a", "aab"}, {"b"}},
    {"regex: braces that count nothing", Expression("a{,2}{x}"), {"a{,2}{x}"}, {"aa"}},
    {"regex: nested counts", Expression("((a{0,3}){0,3}b)*"), {"", "aaaaaaaaab", "bab"}, {"aaaaaaaaaab"}},
    {"regex: counts of what may be empty",
     Expression("(a?b?){3}"),
     {"", "ab", "ababab", "bbb", "aab"},
     {"bbbb", "abababa"}},
    {"choice",
     {.kind = Constraint::kChoice, .choices = {"yes", "yesterday", "no", "\xC3\xA9"}},
     {"yes", "yesterday", "no", "\xC3\xA9"},
     {"ye", "", "yester", "yesno"}},
    {"object", {.kind = Constraint::kJsonObject}, {"{}", "{\"a\": [1]}"}, {"[]", "1"}},
    {"gbnf: rules",
     Gbnf("# a sum\nroot ::= term (op term)*\nterm ::= [0-9]+ |\n  \"(\" root \")\"\nop ::= \"+\" | "
          "\"\\x2d\"\n"),
     {"1", "1+(2-33)"},
     {"1+", "(1", "1*2"}},
    {"gbnf: left recursion",
     Gbnf("root ::= root \",\" item | item\nitem ::= \"a\" | \"b\""),
     {"a", "a,b,a"},
     {",a", "a,"}},
    {"gbnf: classes and counts",
     Gbnf("root ::= [^a\\]]{2} [a-c\\n]? . {1,2}"),
     {"bcaz", "xy\nzz", "xyz"},
     {"abc", "]bc", "xy"}},
    {"gbnf: tokens", Gbnf("root ::= <a> !<b>* <[257]>"), {"\1xy\2", "\1\2"}, {"xy\2", "\1x\1\2", "<a>\2"}},
    {"tag: a call between tokens",
     Tag(R"({"type":"structural_tag","format":{"type":"tag","begin":"<a>f","content":{"type":"json_schema","json_schema":{"type":"object","properties":{"x":{"type":"integer"}},"required":["x"],"additionalProperties":false}},"end":"<b>"}})"),
     {"\1f{\"x\": 1}\2"},
     {"<a>f{\"x\": 1}\2", "\1f{}\2"}},
    {"tag: text until the end",
     Tag(R"({"type":"tag","begin":"<x>","content":{"type":"any_text"},"end":["</x>","</y>"]})"),
     {"<x>a < b </ x></x>", "<x></y>"},
     {"<x>a</x></x>", "<x>a"}},
    {"tag: triggers",
     Tag(R"({"type":"triggered_tags","triggers":["<f="],"tags":[{"type":"tag","begin":"<f=a>","content":{"type":"regex","pattern":"\\d+"},"end":"</f>"},{"type":"tag","begin":"<f=b>","content":{"type":"const_string","value":"q"},"end":"</f>"}]})"),
     {"", "text", "text <f", "a <f=a>12</f> b <f=b>q</f>"},
     {"<f=c>", "<f=a>x</f>", "<f=a>12"}},
    {"tag: a trigger that is a token, one call at least, nothing behind it",
     Tag(R"({"type":"triggered_tags","triggers":["<a>"],"tags":[{"begin":"<a>c","content":{"type":"any_text"},"end":"<b>"}],"at_least_one":true,"stop_after_first":true})"),
     {"\1cxy\2"},
     {"", "x\1c\2", "\1c\2x", "\1c"}},
    {"tag: a token triggers between text",
     Tag(R"({"type":"triggered_tags","triggers":["<a>"],"tags":[{"begin":"<a>c","content":{"type":"const_string","value":"!"},"end":"<b>"}]})"),
     {"", "x<a>", "x\1c!\2y\1c!\2"},
     {"\1", "\1c!", "\2"}},
    {"tag: separators",
     Tag(R"({"type":"tags_with_separator","tags":[{"begin":"<","content":{"type":"const_string","value":"x"},"end":">"}],"separator":",","at_least_one":true})"),
     {"<x>", "<x>,<x>"},
     {"", "<x>,", "<x><x>"}},
    {"tag: parts",
     Tag(R"({"type":"sequence","elements":[{"type":"optional","content":{"type":"const_string","value":"a"}},{"type":"or","elements":[{"type":"const_string","value":"b"},{"type":"grammar","grammar":"root ::= \"c\"+"}]},{"type":"repeat","min":1,"max":2,"content":{"type":"const_string","value":"d"}},{"type":"star","content":{"type":"const_string","value":"e"}}]})"),
     {"bd", "accddee"},
     {"d", "abdd d", "abddd"}},
    {"tag: the old form",
     Tag(R"({"structures":[{"begin":"<f>","schema":{"type":"integer"},"end":"</f>"}],"triggers":["<f>"]})"),
     {"hello <f>12</f> there"},
     {"<f>x</f>", "<f>1"}},
    {"tag: parameters as DSML",
     Tag(R"({"type":"json_schema","style":"deepseek_xml","json_schema":{"type":"object","properties":{"s":{"type":"string"},"n":{"type":["integer","null"]}},"required":["s"]}})"),
     {"<｜DSML｜parameter name=\"s\" string=\"true\">a \"b\" <\n</｜DSML｜parameter>\n",
      "<｜DSML｜parameter name=\"s\" string=\"true\"></｜DSML｜parameter>\n<｜DSML｜parameter name=\"n\" "
      "string=\"false\">12</｜DSML｜parameter>\n"},
     {"", "<｜DSML｜parameter name=\"s\" string=\"false\">\"a\"</｜DSML｜parameter>\n"}},
    {"tag: parameters as GLM writes them",
     Tag(R"({"type":"json_schema","style":"glm_xml","json_schema":{"type":"object","properties":{"k":{"enum":["x","y",3]}},"required":["k"]}})"),
     {"<arg_key>k</arg_key><arg_value>x</arg_value>", "<arg_key>k</arg_key><arg_value>3</arg_value>"},
     {"<arg_key>k</arg_key><arg_value>\"x\"</arg_value>", "<arg_key>k</arg_key><arg_value>z</arg_value>"}},
};
INSTANTIATE_TEST_SUITE_P(Kinds, Constraints, testing::ValuesIn(kCases));

struct Refusal {
  const char* name;
  Constraint constraint;
  std::string text;
};
std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.name; }
class ConstraintsRefuse : public testing::TestWithParam<Refusal> {};

TEST_P(ConstraintsRefuse, ByNameAndPlace) {
  const auto grammar = CompileConstraint(GetParam().constraint, Bytes(), {});
  ASSERT_FALSE(grammar.ok());
  EXPECT_EQ(std::string(grammar.status().message()), GetParam().text);
}

const Refusal kRefusals[] = {
    {"look-behind", Expression("ab(?<=x)"),
     "regex: (?<= at byte 2: look-around is not supported, allowed regular expressions without it"},
    {"back reference", Expression("(a)\\1"),
     "regex: \\1 at byte 3: back references are not supported, allowed regular expressions without it"},
    {"word boundary", Expression("\\bx"),
     "regex: \\b at byte 0: word boundaries are not supported, allowed regular expressions without it"},
    {"property", Expression("\\p{Script=Greek}"),
     "regex: \\p at byte 0: this Unicode property is not supported, allowed general categories as \\p{L} and "
     "\\p{Nd}"},
    {"possessive", Expression("a*+"), "regex: + at byte 2: possessive quantifiers are not supported"},
    {"flags", Expression("(?i)a"),
     "regex: (? at byte 0: flags are not supported, allowed regular expressions without them"},
    {"inner anchor", Expression("a(b$|c)d"),
     "regex: $ at byte 3: anchors are not supported here, allowed at the edges of the whole expression and "
     "of its alternatives"},
    {"count", Expression("a{10001}"), "regex: {10001} at byte 1: allowed counts up to 10000"},
    {"reversed", Expression("a{3,2}"), "regex: {3,2} at byte 1: the bounds are reversed"},
    {"open group", Expression("(a"), "regex: ( at byte 0: the group has no end"},
    {"open class", Expression("a[b"), "regex: [ at byte 1: the class has no end"},
    {"repeat of nothing", Expression("|*"), "regex: * at byte 1: nothing to repeat"},
    {"no choices", {.kind = Constraint::kChoice}, "choice: 0 choices, allowed 1..1000"},
    {"lark", Gbnf("start: \"a\""),
     "grammar: no \"::=\": Lark and other notations are not supported, write it as GBNF"},
    {"indirect recursion", Gbnf("root ::= \"(\" expr\n\nexpr ::= term\nterm ::= expr \"x\" | \"y\""),
     "grammar: line 1: rule \"expr\" calls itself first through \"term\", allowed right recursion"},
    {"undefined", Gbnf("root ::= \"a\"\n  x"), "grammar: line 2: rule \"x\" is not defined"},
    {"no root", Gbnf("a ::= \"a\""), "grammar: no rule \"root\", allowed a grammar with it"},
    {"endless", Gbnf("root ::= \"a\" root"), "grammar: line 1: rule \"root\": no value satisfies it"},
    {"half a range", Gbnf("root ::= [a-"), "grammar: line 1: a class has no end"},
    {"half a class", Gbnf("root ::= [a"), "grammar: line 1: a class has no end"},
    {"half a string", Gbnf("root ::= \"a"), "grammar: line 1: a string has no end"},
    {"unknown token", Gbnf("root ::= <[999]>"), "grammar: line 1: <[999]> is no token of the model"},
    {"dispatch", Tag(R"({"type":"dispatch"})"),
     "structural_tag: #/type: \"dispatch\" is not supported, allowed const_string, json_schema, grammar, "
     "regex, any_text, sequence, or, "
     "optional, plus, star, repeat, tag, triggered_tags and tags_with_separator"},
    {"max_tokens", Tag(R"({"type":"any_text","max_tokens":3})"),
     "structural_tag: #/max_tokens: not supported, allowed a format without it"},
    {"no trigger",
     Tag(R"({"type":"triggered_tags","triggers":["<g"],"tags":[{"begin":"<f","content":{"type":"any_text"},"end":">"}]})"),
     "structural_tag: #: no trigger begins the tag \"<f\""},
    {"schema in a tag", Tag(R"({"format":{"type":"json_schema","json_schema":{"not":{"format":"date"}}}})"),
     "structural_tag: #/format/json_schema/not: not supported, allowed a schema without it"},
    {"style", Tag(R"({"type":"json_schema","json_schema":{},"style":"qwen_xml"})"),
     "structural_tag: #/style: not supported, allowed json, deepseek_xml and glm_xml"},
    {"size", Expression(std::string((256 << 10) + 1, 'a')),
     "regex: 262145 bytes, allowed at most constraints.max_source_kib = 256 KiB"},
};
INSTANTIATE_TEST_SUITE_P(Kinds, ConstraintsRefuse, testing::ValuesIn(kRefusals));

// The adversarial set: each ends within its bounds, refused or compiled.
TEST(Constraints, EndWithinTheirBounds) {
  std::string powers = R"({"$defs":{"d0":{"type":"null"})";
  for (int i = 1; i <= 40; ++i) {
    const std::string below = "\"#/$defs/d" + std::to_string(i - 1) + "\"";
    powers += ",\"d" + std::to_string(i) + R"(":{"allOf":[{"anyOf":[{"$ref":)" + below + R"(},{"$ref":)" +
              below + R"(,"title":"x"}]},{"anyOf":[{"type":"array"},{"$ref":)" + below + "}]}]}";
  }
  powers += R"(},"$ref":"#/$defs/d40"})";
  std::string many = R"({"enum":[)";
  for (int i = 0; i < 5000; ++i)
    many += (i > 0 ? ",\"" : "\"") + std::string("value number ") + std::to_string(i * 7919) + "\"";
  many += "]}";
  std::string one_of = R"({"type":"null"})";
  for (int i = 0; i < 30; ++i)
    one_of = R"({"oneOf":[)" + one_of + R"(,{"type":"array","items":)" + one_of.substr(0, 2000) + "}]}";
  const std::vector<Constraint> constraints = {
      Expression("(a|a)*b"),
      Expression("(.{0,9999}){0,9999}"),
      Expression("(x+x+)+y"),
      Expression("((a{0,99}){0,99}){0,99}"),
      Expression("(a{1,50}){1,50}"),
      Of(Constraint::kJsonSchema, powers),
      Of(Constraint::kJsonSchema, many),
      Of(Constraint::kJsonSchema, one_of),
      Of(Constraint::kJsonSchema, std::string(300'000, '[')),
      Of(Constraint::kJsonSchema, R"({"type":"string","pattern":"(a|b)*a(a|b){18}","maxLength":5000})"),
      Of(Constraint::kJsonSchema,
         R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{"$ref":"#/$defs/a"}]}}})"),
      Gbnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"")};
  for (const Constraint& constraint : constraints) {
    SCOPED_TRACE(constraint.source.substr(0, 60));
    const auto grammar = CompileConstraint(constraint, Bytes(), {});
    if (!grammar.ok()) {
      EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument) << grammar.status();
      continue;
    }
    Matcher matcher(*grammar);
    for (int step = 0; step < 40; ++step) {
      const auto mask = matcher.Mask();
      if (!mask.ok()) {
        EXPECT_EQ(mask.status().code(), absl::StatusCode::kResourceExhausted);
        break;
      }
      const auto taken = matcher.Advance((*mask)->Allows('a') ? 'a' : '\"');
      if (!taken.ok() || !*taken) break;
    }
  }
}

// Token 256 is <a>. The grammar is of what begins with the trigger; free text comes back behind the tag.
TEST(Constraints, TextBeforeATriggerIsFreeWhereATokenBeginsIt) {
  const std::string tag = R"({"begin":"<a>c","content":{"type":"const_string","value":"!"},"end":"<b>"})";
  const std::string begin = R"({"type":"triggered_tags","triggers":["<a>"],"tags":[)" + tag + "]";
  const std::string format = "{\"type\":\"structural_tag\",\"format\":" + begin + "}}";
  const std::pair<std::string, bool> cases[] = {
      {begin + "}", true},
      {format, true},
      {R"({"structures":[{"begin":"<a>c","schema":{"const":"!"},"end":"<b>"}],"triggers":["<a>"]})", true},
      {begin + R"(,"at_least_one":true})", false},
      {begin + R"(,"excludes":["x"]})", false},
      {R"({"type":"triggered_tags","triggers":["<a>","<b>"],"tags":[)" + tag + "]}", false},
      {R"({"type":"triggered_tags","triggers":["c"],"tags":[{"begin":"c","content":{"type":"any_text"},"end":"d"}]})",
       false},
      {R"({"type":"sequence","elements":[)" + begin + "}]}", false}};
  for (const auto& [source, is_free] : cases) {
    SCOPED_TRACE(source);
    Constraint constraint = Tag(source);
    EXPECT_TRUE((*CompileConstraint(constraint, Bytes(), {}))->trigger_ids().empty());
    constraint.free_until_trigger = true;
    const auto grammar = CompileConstraint(constraint, Bytes(), {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    EXPECT_EQ((*grammar)->trigger_ids(), is_free ? std::vector<int32_t>{256} : std::vector<int32_t>{});
    if (!is_free) continue;
    Matcher matcher(*grammar);
    EXPECT_EQ((*matcher.Mask())->count, 1);
    const bool quoted = source.find("structures") != std::string::npos;
    for (const int32_t id : quoted ? std::vector<int32_t>{256, 'c', '"', '!', '"', 257, 'x'}
                                   : std::vector<int32_t>{256, 'c', '!', 257, 'x'}) {
      EXPECT_TRUE(*matcher.Advance(id)) << id;
    }
    EXPECT_TRUE(matcher.IsAccepting());
    EXPECT_FALSE(*matcher.Advance(257));
    EXPECT_TRUE(*matcher.Advance(256)) << "another call";
    EXPECT_FALSE(*matcher.Advance('x'));
  }
}

TEST(Matcher, MasksFollowDraftsUntilOneLeavesTheGrammar) {
  const auto grammar = CompileConstraint(Expression("abc"), Bytes(), {});
  ASSERT_TRUE(grammar.ok());
  Matcher matcher(*grammar);
  const std::vector<int32_t> good = {'a', 'b'}, bad = {'a', 'x', 'c'}, ending = {'a', 'b', 'c', kEnd, 'a'};
  const RowLimits limits = {.drafts = 5, .forced_drafts = 0};
  EXPECT_EQ(matcher.RowsAlong(good, limits)->masks.size(), 3u);
  EXPECT_EQ(matcher.RowsAlong(bad, limits)->masks.size(), 2u);
  EXPECT_EQ(matcher.RowsAlong(ending, limits)->masks.size(), 4u);  // the end token's row is the last
  EXPECT_EQ(matcher.RowsAlong(good, {.drafts = 1, .forced_drafts = 0})->masks.size(), 2u);
  EXPECT_EQ(matcher.token_count(), 0);
  EXPECT_TRUE(matcher.RowsAlong({}, limits)->masks.front()->Allows('a'));
}

// Tokens of one byte, and some longer ones.
std::shared_ptr<const Vocabulary> WithTokens(const std::vector<std::string>& longer) {
  VocabularySource source;
  for (int byte = 0; byte < 256; ++byte) source.ordinary.emplace_back(1, static_cast<char>(byte));
  source.ordinary.insert(source.ordinary.end(), longer.begin(), longer.end());
  source.end_ids = {static_cast<int32_t>(source.ordinary.size())};
  source.ordinary.emplace_back();
  return *Vocabulary::Create(std::move(source));
}

TEST(Matcher, ForcedTextFollowsWhereDraftsEnd) {
  struct Case {
    const char* name;
    const char* regex;
    std::vector<std::string> longer;  // ids from 256
    std::vector<int32_t> drafts;
    RowLimits limits;
    std::vector<int32_t> forced;
  };
  for (const Case& c : {
           Case{"no draft", "abc", {}, {}, {5, 5}, {'a', 'b', 'c'}},
           Case{"a refused one", "abc", {}, {'a', 'x', 'c'}, {5, 5}, {'b', 'c'}},
           Case{"as many as there are rows", "abc", {}, {'a', 'x', 'c'}, {2, 5}, {'b'}},
           Case{"as many as the drafter bears", "abc", {}, {'a', 'x', 'c'}, {5, 1}, {'b'}},
           Case{"not after the drafter's own rows", "abc", {}, {'a', 'b', 'c'}, {3, 5}, {}},
           Case{"a choice", "ab|ac", {}, {}, {5, 5}, {'a'}},
           Case{"no more once the output may end", "ab*", {}, {}, {5, 5}, {'a'}},
           Case{"the longest token", "abcd", {"ab", "abc"}, {'x'}, {5, 5}, {257, 'd'}},
           Case{"a longer one goes on", "abc[de]", {"abcd", "ab"}, {}, {5, 5}, {}},
           Case{"a longer one that the grammar refuses", "ab[de]", {"abc"}, {}, {5, 5}, {'a', 'b'}},
           Case{"own tokens of forced text stay", "abcd", {"ab", "cd"}, {'a', 'b', 'x'}, {5, 5}, {257}},
       }) {
    const auto grammar = CompileConstraint(Expression(c.regex), WithTokens(c.longer), {});
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    const absl::StatusOr<GrammarRows> rows = Matcher(*grammar).RowsAlong(c.drafts, c.limits);
    ASSERT_TRUE(rows.ok()) << rows.status();
    EXPECT_EQ(rows->forced_drafts, c.forced) << c.name;
    ASSERT_GT(rows->masks.size(), rows->forced_drafts.size()) << c.name;
    const size_t own = rows->masks.size() - 1 - rows->forced_drafts.size();
    for (size_t i = 0; i < c.forced.size(); ++i) {
      EXPECT_TRUE(rows->masks[own + i]->Allows(c.forced[i])) << c.name;
    }
  }
}

TEST(Matcher, EndsWithAnEndTokenAloneAndTakesNothingAfterIt) {
  const auto grammar = CompileConstraint(Expression("a"), Bytes(), {});
  ASSERT_TRUE(grammar.ok());
  Matcher matcher(*grammar, {kTokenA});
  EXPECT_FALSE(*matcher.Advance(kEnd));
  ASSERT_TRUE(*matcher.Advance('a'));
  EXPECT_TRUE(matcher.IsAccepting());
  EXPECT_EQ((*matcher.Mask())->ids, (std::vector<int32_t>{kTokenA, kEnd}));
  Matcher other = matcher;
  EXPECT_TRUE(*matcher.Advance(kTokenA));
  EXPECT_TRUE(matcher.has_ended());
  EXPECT_FALSE(*matcher.Advance('a'));
  EXPECT_EQ((*matcher.Mask())->ids, (std::vector<int32_t>{kTokenA, kEnd}));
  EXPECT_FALSE(other.has_ended());
}

TEST(Matcher, NamesForcedBytes) {
  const auto grammar =
      CompileConstraint(Of(Constraint::kJsonSchema, R"({"const":{"name":"x"}})"), Bytes(), {});
  ASSERT_TRUE(grammar.ok());
  Matcher matcher(*grammar);
  EXPECT_EQ(*matcher.ForcedBytes(100), "{");
  ASSERT_TRUE(*matcher.Advance('{'));
  EXPECT_EQ(*matcher.ForcedBytes(100), "");  // white space may come
  ASSERT_TRUE(*matcher.Advance('"'));
  EXPECT_EQ(*matcher.ForcedBytes(100), "name\"");
  EXPECT_EQ(*matcher.ForcedBytes(3), "nam");
}

TEST(Vocabulary, RefusesAGrammarThatNeedsAMissingByte) {
  VocabularySource source;
  source.ordinary = {"a", "b"};
  const auto vocabulary = Vocabulary::Create(std::move(source));
  ASSERT_TRUE(vocabulary.ok());
  const auto grammar = CompileConstraint(Expression("ac"), *vocabulary, {});
  EXPECT_EQ(grammar.status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace foredraft
