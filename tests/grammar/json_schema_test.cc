#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/grammar/schema_texts.h"

namespace foredraft {
namespace {

struct Case {
  const char* name;
  std::string schema;
  std::vector<std::string> valid;
  std::vector<std::string> invalid;
};

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class JsonSchema : public testing::TestWithParam<Case> {};

TEST_P(JsonSchema, TakesWhatIsValid) {
  const auto grammar = CompileSchema(GetParam().schema);
  ASSERT_TRUE(grammar.ok()) << grammar.status();
  for (const std::string& text : GetParam().valid) EXPECT_EQ(Try(*grammar, text), "accepted") << text;
  for (const std::string& text : GetParam().invalid) EXPECT_NE(Try(*grammar, text), "accepted") << text;
}

const Case kCases[] = {
    {"anything",
     "{}",
     {"1", "-0.5e+3", "\"a\"", "[]", "[1, {\"a\": null}]", "{}", "true"},
     {"", " 1", "01", "1.", "nul", "[1,]"}},
    {"white space",
     R"({"type":"object","properties":{"a":{"type":"integer"}},"required":["a"]})",
     {"{\"a\":1}", "{ \"a\" : 1 }", "{\n  \"a\": 1\n}", "{\n\t\"a\": 1\n}"},
     {"{  \"a\":1}", "{\n\n\"a\":1}", "{\"a\":1} ", "{\"a\" \n:1}"}},
    {"strings",
     R"({"type":"string"})",
     {"\"\"", "\"\xC3\xA9\"", "\"\\u00e9\\n\\/\"", "\"\\ud83d\\ude00\""},
     {"\"\n\"", "\"\\x\"", "\"\\ud83d\"", "\"\\ude00\"", "\"\xC3\"", "\"\xED\xA0\x80\""}},
    {"order of properties",
     R"({"type":"object","properties":{"b":{"const":1},"a":{"const":2}},"required":["c","a"]})",
     {R"({"b":1,"a":2,"c":3})", R"({"a":2,"c":3})", R"({"a":2,"c":3,"x":4,"x":5})"},
     {R"({"a":2,"b":1,"c":3})", R"({"a":2})", R"({"c":3,"a":2})", R"({"a":2,"c":3,"a":2})",
      R"({"b":2,"a":2,"c":3})"}},
    {"closed object",
     R"({"type":"object","properties":{"a":{}},"additionalProperties":false})",
     {"{}", R"({"a":[]})"},
     {R"({"b":1})", R"({"a":1,"b":1})", R"({"\u0061":1})"}},
    {"keys that begin as declared ones",
     R"({"type":"object","properties":{"ab":{"const":1}}})",
     {R"({"ab":1})", R"({"a":2})", R"({"abc":2})", R"({"b":2})", R"({"":2})", R"({"a\n":2})"},
     {R"({"ab":2})"}},
    {"patternProperties",
     R"({"type":"object","patternProperties":{"^n_":{"type":"integer"}},"additionalProperties":{"type":"string"}})",
     {R"({"n_a":1,"b":"x"})", R"({"n":"x"})"},
     {R"({"n_a":"x"})", R"({"b":1})"}},
    {"count of properties",
     R"({"type":"object","properties":{"a":{}},"required":["a"],"minProperties":2,"maxProperties":3})",
     {R"({"a":1,"b":2})", R"({"a":1,"b":2,"c":3})"},
     {"{}", R"({"a":1})", R"({"a":1,"b":2,"c":3,"d":4})"}},
    {"arrays",
     R"({"type":"array","items":{"type":"integer"},"minItems":1,"maxItems":3})",
     {"[1]", "[1,2,3]"},
     {"[]", "[1,2,3,4]", "[\"a\"]"}},
    {"prefixItems",
     R"({"type":"array","prefixItems":[{"const":1},{"const":2}],"items":{"const":3},"minItems":1})",
     {"[1]", "[1,2]", "[1,2,3,3]"},
     {"[]", "[2]", "[1,2,4]"}},
    {"draft 7 tuples",
     R"({"type":"array","items":[{"const":1}],"additionalItems":false})",
     {"[]", "[1]"},
     {"[1,1]", "[2]"}},
    {"enum",
     R"({"enum":["a",1,null,[1,"b"],{"x":1.50}]})",
     {"\"a\"", "1", "null", "[1, \"b\"]", "{\"x\":1.50}"},
     {"\"b\"", "2", "[1]", "{\"x\":1.5}"}},
    {"enum with a type",
     R"({"enum":["a",1,2.5],"type":["integer","string"],"maximum":1})",
     {"\"a\"", "1"},
     {"2.5"}},
    {"integers in bounds",
     R"({"type":"integer","minimum":-12,"exclusiveMaximum":345})",
     {"-12", "-9", "-0", "0", "7", "344", "99"},
     {"-13", "345", "1000", "-100", "1.5", "00"}},
    {"numbers in bounds",
     R"({"type":"number","exclusiveMinimum":0,"maximum":1.25})",
     {"1", "1.25", "0.0001", "1.2500", "0.9"},
     {"0", "0.0", "1.251", "2", "-1", "1e-1", "-0.5"}},
    {"negative bounds",
     R"({"type":"number","minimum":-2.5,"maximum":-0.5})",
     {"-2.5", "-1", "-0.5", "-0.50"},
     {"-2.51", "-0.49", "0", "-3", "1"}},
    {"draft 4 bounds",
     R"({"type":"integer","minimum":1,"exclusiveMinimum":true,"maximum":3})",
     {"2", "3"},
     {"1", "4"}},
    {"multipleOf",
     R"({"type":"integer","multipleOf":7,"minimum":10})",
     {"14", "700", "21"},
     {"7", "15", "-7", "0"}},
    {"places", R"({"type":"number","multipleOf":0.01})", {"1", "1.25", "-0.5"}, {"1.255", "1e2"}},
    {"multipleOf of a decimal",
     R"({"type":"number","multipleOf":0.25,"maximum":20})",
     {"1", "1.25", "-0.5", "0.75", "17.5", "0"},
     {"1.2", "1.255", "0.1", "20.25", "1e2"}},
    {"multipleOf of two",
     R"({"type":"number","allOf":[{"multipleOf":0.5},{"multipleOf":0.3}]})",
     {"1.5", "3", "-4.5", "0"},
     {"0.5", "0.3", "1", "2.4"}},
    {"multipleOf of a large integer",
     R"({"type":"integer","multipleOf":5000})",
     {"5000", "0", "-25000", "1230005000"},
     {"500", "2500", "5001", "50000001"}},
    {"lengths",
     R"({"type":"string","minLength":2,"maxLength":3})",
     {"\"ab\"", "\"\xC3\xA9\\n\xF0\x9F\x98\x80\"", "\"\\ud83d\\ude00b\""},
     {"\"a\"", "\"abcd\"", "\"\""}},
    {"pattern",
     R"({"type":"string","pattern":"^[a-c\"]+\\d$"})",
     {"\"a1\"", R"("a\"1")"},
     {"\"d1\"", "\"a\"", R"("\u00611")"}},
    {"pattern that is searched",
     R"({"type":"string","pattern":"b|^d"})",
     {"\"abc\"", "\"d\"", "\"db\""},
     {"\"ad\"", "\"\""}},
    {"look-aheads of zod's e-mail",
     R"x({"type":"string","pattern":"^(?!\\.)(?!.*\\.\\.)([A-Za-z0-9_'+\\-\\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\\-]*\\.)+[A-Za-z]{2,}$"})x",
     {R"("a.b@c.de")", R"("a@b-c.d.ef")"},
     {R"(".a@c.de")", R"("a..b@c.de")", R"("a@c..de")", R"("a.@c.de")", R"("a@c")"}},
    {"look-aheads of pydantic's decimals",
     R"x({"type":"string","pattern":"^(?!^[-+.]*$)[+-]?0*\\d*\\.?\\d*$"})x",
     {R"("0")", R"("-1.5")", R"("+.5")", R"("00.")"},
     {R"("")", R"("-")", R"("+.")", R"(".")", R"("1.2.3")"}},
    {"look-aheads of passwords",
     R"x({"type":"string","pattern":"^(?=.*[A-Z])(?=.*\\d|x[)]y).{4,}$","maxLength":5})x",
     {R"("aA1b")", R"("x)yA")", R"("1234A")"},
     {R"("aa1b")", R"("aAbc")", R"("A1b")", R"("aA1bcd")"}},
    {"pattern with length",
     R"({"type":"string","pattern":"^a*b?$","maxLength":3,"minLength":2})",
     {"\"aa\"", "\"aab\"", "\"ab\""},
     {"\"a\"", "\"aaab\"", "\"bb\""}},
    {"format date",
     R"({"type":"string","format":"date"})",
     {"\"2024-02-29\"", "\"2023-12-31\""},
     {"\"2023-02-29\"", "\"2023-13-01\"", "\"1900-02-29\"", "\"2023-1-1\""}},
    {"format ipv6",
     R"({"type":"string","format":"ipv6"})",
     {"\"::1\"", "\"::\"", "\"1:2:3:4:5:6:7:8\"", "\"1::8\"", "\"::ffff:1.2.3.4\""},
     {"\"1:2\"", "\":1\"", "\"1:::2\"", "\"1:2:3:4:5:6:7:8:9\"", "\"12345::\""}},
    {"format hostname",
     R"({"type":"string","format":"hostname"})",
     {"\"a\"", "\"ab\"", "\"a-b\"", "\"abc\"", "\"ab-c\"", "\"a--b\"", "\"ab-cd\"", "\"a-b-c.d-e\"",
      "\"abc--d\"", "\"a23456789012345678901234567890123456789012345678901234567890123\""},
     {"\"xn--X\"", "\"ab--c\"", "\"x.xn--abc\"", "\"ab--cdef.x\"", "\"-a\"", "\"a-\"", "\"abc-\"",
      "\"abcd-\"", "\"\"", "\"a.\"", "\"a_b\"",
      "\"a234567890123456789012345678901234567890123456789012345678901234\""}},
    {"format uri-reference",
     R"({"type":"string","format":"uri-reference"})",
     {"\"a/b?c#d\"", "\"//h/p\"", "\"\"", "\"http://h:1/p\"", "\"./a:b\"", "\"#x\"", "\"%20\""},
     {"\"://\"", "\"!not a reference!\"", "\"1a:b\"", "\"%2\"", "\"a^b\"", "\"\u00e9\""}},
    {"format iri",
     R"({"type":"string","format":"iri"})",
     {"\"http://h/\u00e9\"", "\"x:\xC3\xA9?\xF0\x9F\x98\x80\""},
     {"\"not-an-iri\"", "\"http://h/ \"", "\"x:\xEE\x80\x80\""}},
    {"format uri-template",
     R"({"type":"string","format":"uri-template"})",
     {"\"http://h/{a}{?b*,c:3}\"", "\"\"", "\"{+x.y}\"", "\"{%41}\""},
     {"\"http://h/{\"", "\"{}\"", "\"a}\"", "\"{a b}\"", "\"{a:0}\"", "\"'\""}},
    {"format json-pointer",
     R"({"type":"string","format":"json-pointer"})",
     {"\"\"", "\"/a~0b/~1//\"", "\"/\""},
     {"\"a\"", "\"/~2\"", "\"/~\""}},
    {"format relative-json-pointer",
     R"({"type":"string","format":"relative-json-pointer"})",
     {"\"0#\"", "\"12/a\"", "\"1\""},
     {"\"/a\"", "\"01\"", "\"1#/a\""}},
    {"unknown format", R"({"type":"string","format":"made-up"})", {"\"x\""}, {"1"}},
    {"anyOf with siblings",
     R"({"type":"object","properties":{"a":{}},"anyOf":[{"required":["a"]},{"properties":{"a":{"type":"null"}},"required":["b"]}]})",
     {R"({"a":1})", R"({"b":1})", R"({"a":null,"b":1})"},
     {"{}", R"({"c":1})"}},
    {"oneOf by a constant",
     R"({"oneOf":[{"properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k"],"type":"object"},{"properties":{"k":{"const":"b"}},"required":["k"],"type":"object","additionalProperties":false}]})",
     {R"({"k":"a","x":1})", R"({"k":"b"})"},
     {R"({"k":"b","x":1})", "{}"}},
    {"allOf",
     R"({"allOf":[{"type":"integer","minimum":3},{"maximum":5},{"multipleOf":2}]})",
     {"4"},
     {"3", "6", "2"}},
    {"not beside what is declared",
     R"({"type":"object","properties":{"k":{"type":"string","not":{"enum":["a","bc"]},"maxLength":3}},"not":{"required":["x"]}})",
     {"{}", R"({"k":"b"})", R"({"k":"abc"})", R"({"y":1})"},
     {R"({"k":"a"})", R"({"k":"bc"})", R"({"k":"abcd"})", R"({"x":1})", R"({"y":1,"x":1})"}},
    {"not beside enum",
     R"({"enum":["a","b",1,2,[1]],"allOf":[{"not":{"const":"a"}},{"not":{"enum":[2.0,3]}},{"not":{"type":"array"}}]})",
     {"\"b\"", "1"},
     {"\"a\"", "2", "[1]"}},
    {"oneOf of what may overlap",
     R"({"type":"object","oneOf":[{"required":["a"]},{"required":["b","c"]},{"properties":{"d":{"const":1}},"required":["d"]}]})",
     {R"({"a":1})", R"({"b":1,"c":1})", R"({"d":1})", R"({"a":1,"b":1})", R"({"d":2,"a":1})"},
     {"{}", R"({"b":1})", R"({"d":1,"a":1})", R"({"a":1,"b":1,"c":1})", R"({"d":2})",
      R"({"a":1,"b":1,"c":1,"d":1})"}},
    {"oneOf of integers and numbers",
     R"({"oneOf":[{"type":"integer","minimum":10},{"type":"number"},{"type":"null"}]})",
     {"9", "-3", "9.5", "10.5", "1234.001", "null", "9.0", "-0.0"},
     {"10", "10.0", "123"}},
    {"fractions in bounds",
     R"({"type":"number","minimum":1,"maximum":2.5,"not":{"type":"integer"}})",
     {"1.5", "2.5", "1.001", "2.50"},
     {"1", "2", "2.0", "1.00", "2.51", "3.5", "0.5"}},
    {"oneOf of strings",
     R"({"oneOf":[{"type":"string","pattern":"a"},{"type":"string","minLength":3},{"enum":["a","xyz",7]}]})",
     {R"("ba")", R"("bcd")", "7"},
     {R"("a")", R"("abc")", R"("xyz")", R"("b")", "8"}},
    {"dependencies",
     R"({"type":"object","properties":{"a":{},"b":{},"c":{}},"dependencies":{"a":["b"],"c":{"properties":{"b":{"const":1}}}}})",
     {"{}", R"({"b":2})", R"({"a":1,"b":2})", R"({"c":1})", R"({"b":1,"c":1})"},
     {R"({"a":1})", R"({"b":2,"c":1})", R"({"a":1,"c":1})"}},
    {"dependentRequired and dependentSchemas",
     R"({"type":"object","properties":{"a":{},"b":{}},"dependentRequired":{"a":["b"]},"dependentSchemas":{"b":{"required":["a"]}}})",
     {"{}", R"({"a":1,"b":2})"},
     {R"({"a":1})", R"({"b":2})"}},
    {"if",
     R"({"type":"object","properties":{"k":{"enum":["a","b"]},"v":{}},"required":["k"],"if":{"properties":{"k":{"const":"a"}}},"then":{"required":["v"]},"else":{"properties":{"v":{"type":"null"}}}})",
     {R"({"k":"a","v":1})", R"({"k":"b"})", R"({"k":"b","v":null})"},
     {R"({"k":"a"})", R"({"k":"b","v":1})", R"({"v":1})"}},
    {"if alone", R"({"type":"integer","if":{"minimum":1},"then":{"maximum":3}})", {"-9", "2"}, {"4"}},
    {"propertyNames of libraries",
     R"({"type":"object","propertyNames":{"type":"string"},"additionalProperties":{"type":"number"}})",
     {"{}", R"({"x":1})"},
     {R"({"x":"1"})"}},
    {"propertyNames",
     R"({"type":"object","properties":{"z":{}},"propertyNames":{"pattern":"^[a-z]","maxLength":2},"additionalProperties":{"type":"integer"}})",
     {"{}", R"({"z":null})", R"({"x":1,"ab":2})"},
     {R"({"abc":1})", R"({"1":1})", R"({"x":null})", R"({"":1})"}},
    {"propertyNames of a reference",
     R"({"type":"object","propertyNames":{"$ref":"#/$defs/n"},"additionalProperties":{"type":"integer"},"$defs":{"n":{"title":"n","type":"string","enum":["a","b"]}}})",
     {"{}", R"({"a": 1})", R"({"a": 1, "b": 2})"},
     {R"({"c": 1})", R"({"a": null})"}},
    {"uniqueItems of a few values",
     R"({"type":"array","uniqueItems":true,"items":{"enum":["a",1,1.0,null,[2]]},"minItems":1,"maxItems":3})",
     {R"(["a"])", R"([[2], null, "a"])", "[1, null]"},
     {"[]", R"(["a", "a"])", R"(["a", 1, null, [2]])", "[1, 1.0]", "[[2], [2]]", "[2]"}},
    {"uniqueItems of booleans and nulls",
     R"({"type":"array","uniqueItems":true,"items":{"anyOf":[{"type":"boolean"},{"type":["null","boolean"]}]}})",
     {"[]", "[true]", "[true, null, false]"},
     {"[true, true]", "[null, null]", "[1]", "[true, null, false, true]"}},
    {"uniqueItems of an enumerated array",
     R"({"enum":[[1,1.0],[1,"1"],[{"a":1},{"a":1}]],"uniqueItems":true})",
     {R"([1, "1"])"},
     {"[1, 1.0]", R"([{"a": 1}, {"a": 1}])"}},
    {"uniqueItems of one", R"({"type":"array","uniqueItems":true,"maxItems":1})", {"[]", "[3]"}, {"[3, 4]"}},
    {"anchors",
     R"({"type":"array","items":{"anyOf":[{"$ref":"#new"},{"$ref":"#old"}]},"definitions":{"a":{"$anchor":"new","type":"integer"},"b":{"$id":"#old","type":"null"},"c":{"const":{"$anchor":"new"}}}})",
     {"[]", "[1, null]"},
     {"[true]"}},
    {"the document's own address",
     R"({"$id":"https://example.org/schemas/list.json#","type":"object","properties":{"a":{"$ref":"list.json#/$defs/n"},"b":{"$ref":"https://example.org/schemas/list.json"}},"additionalProperties":false,"$defs":{"n":{"type":"null"}}})",
     {"{}", R"({"a": null, "b": {"a": null}})"},
     {R"({"a": 1})", R"({"b": null})"}},
    {"propertyNames of an enum",
     R"({"type":"object","propertyNames":{"enum":["a","b"]},"additionalProperties":{"type":"integer"},"required":["b"]})",
     {R"({"b":1})", R"({"a":1,"b":1})"},
     {R"({"a":1})", R"({"b":1,"c":1})", R"({"b":1,"b":1})", R"({"b":"x"})"}},
    {"propertyNames that are not",
     R"({"type":"object","propertyNames":{"not":{"enum":["a"]},"minLength":1},"additionalProperties":true})",
     {R"({"b":1})", "{}"},
     {R"({"a":1})", R"({"":1})"}},
    {"recursion",
     R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object","properties":{"l":{"$ref":"#/$defs/t"},"v":{"type":"integer"}},"required":["v"],"additionalProperties":false}}})",
     {R"({"v":1})", R"({"l":{"l":{"v":1},"v":2},"v":3})"},
     {R"({"l":{},"v":1})"}},
    {"forced calls of a gateway",
     R"({"type":"array","minItems":1,"items":{"type":"object","anyOf":[{"properties":{"name":{"enum":["f"]},"parameters":{"type":"object","properties":{"x":{"$ref":"#/$defs/n"}},"required":["x"]}},"required":["name","parameters"]}]},"$defs":{"n":{"type":"integer"}}})",
     {R"([{"name":"f","parameters":{"x":1}}])"},
     {"[]", R"([{"name":"g","parameters":{"x":1}}])", R"([{"name":"f","parameters":{"x":"1"}}])"}},
};
INSTANTIATE_TEST_SUITE_P(Keywords, JsonSchema, testing::ValuesIn(kCases));

const char* const kValues[] = {"null",
                               "true",
                               "false",
                               "0",
                               "-3",
                               "5",
                               "2.5",
                               "\"\"",
                               "\"a\"",
                               "\"ab\"",
                               "\"xyz\"",
                               "[]",
                               "[1]",
                               "[1, \"a\"]",
                               "{}",
                               R"({"a": 1})",
                               R"({"a": "x"})",
                               R"({"b": null})",
                               R"({"a": 1, "b": 2})"};

// What a schema takes, its `not` refuses, and the other way round.
TEST(JsonSchema, NotIsTheComplement) {
  for (const std::string schema :
       {R"(true)",
        R"({"type":"string"})",
        R"({"type":["null","number","array"]})",
        R"({"type":"object","title":"t"})",
        R"({"enum":["a",5,null,true]})",
        R"({"const":2.5})",
        R"({"const":"xyz"})",
        R"({"minimum":0})",
        R"({"maximum":2.5,"exclusiveMaximum":true})",
        R"({"exclusiveMinimum":-3,"exclusiveMaximum":5})",
        R"({"minLength":2})",
        R"({"maxLength":1})",
        R"({"pattern":"^a"})",
        R"({"type":"string","pattern":"b$","minLength":1})",
        R"({"minItems":1})",
        R"({"maxItems":1})",
        R"({"required":["a"]})",
        R"({"required":["a","b"]})",
        R"({"required":[]})",
        R"({"properties":{"a":{"type":"integer"},"b":{"const":2}}})",
        R"({"type":"integer"})",
        R"({"type":["integer","null"],"minimum":3})",
        R"({"type":"object","properties":{"a":{"type":"string"}},"required":["a"]})",
        R"({"allOf":[{"required":["a"]},{"type":"object"}]})",
        R"({"anyOf":[{"type":"array"},{"minLength":2},{"const":null}]})",
        R"({"not":{"type":"null"}})",
        R"({"not":{"not":{"enum":["a"]}}})",
        R"({"$ref":"#/$defs/n","maximum":3})"}) {
    SCOPED_TRACE(schema);
    const std::string defs = R"(,"$defs":{"n":{"minimum":1}}})";
    const std::string open = schema == "true" ? "{" : schema.substr(0, schema.size() - 1) + ",";
    const auto plain = CompileSchema(open + R"("default":0)" + defs);
    const auto negated = CompileSchema(R"({"not":)" + schema + defs);
    const bool has_complement = schema != "true" && schema.find("\"required\":[]") == std::string::npos;
    ASSERT_TRUE(plain.ok()) << plain.status();
    ASSERT_EQ(negated.ok(), has_complement) << negated.status();
    for (const std::string value : kValues) {
      const bool is_negated = negated.ok() && Try(*negated, value) == "accepted";
      EXPECT_NE(Try(*plain, value) == "accepted", is_negated) << value;
    }
  }
}

struct Refusal {
  const char* name;
  std::string schema;
  std::string text;
};
std::ostream& operator<<(std::ostream& out, const Refusal& r) { return out << r.name; }
class JsonSchemaRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(JsonSchemaRefuses, ByPointerAndKeyword) {
  const auto grammar = CompileSchema(GetParam().schema);
  ASSERT_FALSE(grammar.ok());
  EXPECT_EQ(grammar.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(grammar.status().message()), "json_schema: " + GetParam().text);
}

const Refusal kRefusals[] = {
    {"not of a format", R"({"properties":{"age":{"not":{"format":"date"}}}})",
     "#/properties/age/not: not supported, allowed a schema without it"},
    {"not of what nothing violates", R"({"type":"object","properties":{"a":{"not":{}}},"required":["a"]})",
     "#/properties/a/not: no value satisfies it"},
    {"not of itself", R"({"not":{"$ref":"#"}})",
     "#: refers to itself before any value, allowed a reference below properties or items"},
    {"a pattern below not", R"x({"type":"string","not":{"pattern":"(?=a)"}})x",
     "#/not/pattern: (?= at byte 0: look-around is not supported, allowed regular expressions without it"},
    {"text", R"({"a" 1})", "not JSON at byte 6, allowed JSON text"},
    {"twice", R"({"properties":{"a":1,"a":2}})", "#/properties: key \"a\" given twice, allowed once"},
    {"propertyNames of a choice",
     R"({"propertyNames":{"$ref":"#/$defs/a"},"$defs":{"a":{"anyOf":[{"pattern":"a"}]}}})",
     "#/propertyNames: not supported, allowed a schema without it"},
    {"if without a complement", R"({"if":{"multipleOf":3},"then":{"type":"integer"}})",
     "#/if: not supported, allowed a schema without it"},
    {"dependencies of no object", R"({"type":"object","dependencies":["a"]})",
     "#/dependencies: not supported, allowed a schema without it"},
    {"oneOf", R"({"oneOf":[{"type":"string"},{"format":"date"}]})",
     "#/oneOf: branches 0 and 1 may both match, allowed disjoint branches or anyOf"},
    {"remote", R"({"$ref":"http://x/y"})",
     "#/$ref: not supported, allowed a JSON pointer or an anchor of the same document (\"#...\")"},
    {"lost", R"({"$ref":"#/nowhere"})", "#/$ref: leads nowhere, allowed a schema of the document"},
    {"itself", R"({"$ref":"#"})",
     "#: refers to itself before any value, allowed a reference below properties or items"},
    {"false", "false", "#: no value satisfies it"},
    {"contradiction",
     R"({"type":"object","properties":{"a":{"type":"integer","enum":["x"]}},"required":["a"]})",
     "#/properties/a: no value satisfies it"},
    {"endless", R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})",
     "#: no value satisfies it"},
    {"regex", R"x({"type":"string","pattern":"(?=a)"})x",
     "#/pattern: (?= at byte 0: look-around is not supported, allowed regular expressions without it"},
    {"a look-ahead inside", R"x({"type":"string","pattern":"^a(?=b)|c"})x",
     "#/pattern: (?= at byte 2: look-around is not supported, allowed regular expressions without it"},
    {"a look-ahead of one alternative", R"x({"type":"string","pattern":"^(?=b)b|c"})x",
     "#/pattern: (?= at byte 1: look-around is not supported, allowed regular expressions without it"},
    {"a look-ahead that is repeated", R"x({"type":"string","pattern":"^(?=b)*c"})x",
     "#/pattern: (?= at byte 1: look-around is not supported, allowed regular expressions without it"},
    {"format regex", R"({"type":"string","format":"regex"})",
     "#/format: not supported, allowed a schema without it"},
    {"minProperties of keys that may be equal",
     R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":2})",
     "#/minProperties: 2, but keys that are not declared may repeat each other, allowed at most 1"},
    {"minProperties of patterns",
     R"({"type":"object","patternProperties":{"^[a-z]+$":{"type":"integer"}},"additionalProperties":false,"minProperties":2})",
     "#/minProperties: 2, but keys that are not declared may repeat each other, allowed at most 1"},
    {"minProperties beyond the required ones and one",
     R"({"type":"object","properties":{"a":{}},"required":["a"],"minProperties":3})",
     "#/minProperties: 3, but keys that are not declared may repeat each other, allowed at most 2"},
    {"minProperties beside optional ones",
     R"({"type":"object","properties":{"a":{},"b":{}},"minProperties":2})",
     "#/minProperties: 2 beside optional properties and others, which may repeat each other, allowed at most "
     "1"},
    {"format with a length", R"({"type":"string","format":"uri","minLength":9,"maxLength":2000})",
     "#/format: format and minLength and maxLength together need an automaton of more than 20000 states, "
     "allowed fewer of "
     "them "
     "or a simpler pattern"},
    {"uniqueItems", R"({"type":"array","uniqueItems":true})",
     "#/uniqueItems: not supported here, allowed where all items are of the same at most 10 values, or "
     "maxItems is 1"},
    {"uniqueItems below a prefix",
     R"({"type":"array","uniqueItems":true,"prefixItems":[{}],"items":{"type":"boolean"}})",
     "#/uniqueItems: not supported here, allowed where all items are of the same at most 10 values, or "
     "maxItems is 1"},
    {"an anchor of another document",
     R"({"items":{"$ref":"#a"},"$defs":{"b":{"$id":"b","$defs":{"c":{"$anchor":"a"}}}}})",
     "#/items/$ref: leads nowhere, allowed an anchor of the document"},
    {"another document of its own address",
     R"({"$id":"https://example.org/a","items":{"$ref":"https://example.org/b#/c"}})",
     "#/items/$ref: not supported, allowed a JSON pointer or an anchor of the same document (\"#...\")"},
};
INSTANTIATE_TEST_SUITE_P(Keywords, JsonSchemaRefuses, testing::ValuesIn(kRefusals));

TEST(JsonSchema, LeavesOutWhiteSpaceIfCompact) {
  const auto grammar = CompileSchema("{}", true);
  ASSERT_TRUE(grammar.ok());
  EXPECT_EQ(Try(*grammar, R"({"a":[1,2]})"), "accepted");
  EXPECT_EQ(Try(*grammar, R"({"a": 1})"), "refused at 5");
}

TEST(JsonSchema, OffersNoDeeperNestingThanTheLimit) {
  const auto grammar = CompileSchema("{}");
  ASSERT_TRUE(grammar.ok());
  const std::string open(64, '[');
  EXPECT_EQ(Try(*grammar, open + std::string(64, ']')), "accepted");
  EXPECT_EQ(Try(*grammar, open + "["), "refused at 64");
}

TEST(JsonSchema, IgnoresKeywordsOfTypesThatCannotCome) {
  EXPECT_TRUE(CompileSchema(R"({"type":"string","uniqueItems":true,"dependencies":{"a":["b"]}})").ok());
}

}  // namespace
}  // namespace foredraft
