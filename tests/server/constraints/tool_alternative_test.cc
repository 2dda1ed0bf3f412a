// Tools together with a constraint: the answer is calls in the family's format, or what the constraint says.

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "server/constraints/tool_tag.h"
#include "server/text/chat_format.h"
#include "tests/server/text/chat_tokenizer.h"

namespace foredraft {
namespace {

constexpr int kVocabSize = 400;
constexpr int32_t kEnd = 399;

struct Family {
  const char* name;
  std::unique_ptr<Tokenizer> tokenizer;
  const char* own_format;
};

std::vector<Family> Families() {
  std::vector<Family> families;
  families.push_back({"r1", DeepseekTokenizer(nullptr), "deepseek_r1"});
  families.push_back({"v31", DeepseekTokenizer(kV31Template), ""});
  families.push_back({"v32", DeepseekTokenizer(nullptr), "deepseek_v32"});
  families.push_back({"v4", DeepseekTokenizer(nullptr), "deepseek_v4"});
  families.push_back({"glm", GlmTokenizer(), ""});
  families.push_back({"kimi", KimiTokenizer(), ""});
  families.push_back({"v32_bytes", DeepseekTokenizer(nullptr, false), "deepseek_v32"});
  return families;
}

// Whether the tag takes the whole text.
bool Takes(const Family& family, const ToolTag& tag, const std::string& text) {
  const auto vocabulary = *MakeVocabulary(*family.tokenizer, kVocabSize, {kEnd});
  const auto grammar = CompileConstraint({.kind = Constraint::kStructuralTag, .source = tag.source},
                                         vocabulary, GrammarLimits{});
  EXPECT_TRUE(grammar.ok()) << grammar.status() << "\n" << tag.source;
  if (!grammar.ok()) return false;
  Matcher matcher(*grammar);
  const std::vector<int32_t> ids = *family.tokenizer->Encode(text, {.parse_special = true, .add_bos = false});
  for (const int32_t id : ids) {
    if (!*matcher.Advance(id)) return false;
  }
  return matcher.IsAccepting();
}

TEST(ToolAlternative, EveryKindOfConstraintStandsBesideCalls) {
  const struct {
    Constraint constraint;
    const char* good;
    const char* bad;
  } cases[] = {
      {{.kind = Constraint::kJsonSchema, .source = R"({"type":"integer","maximum":50})"}, "48", "51"},
      {{.kind = Constraint::kJsonObject}, "{\"a\": [1]}", "[1]"},
      {{.kind = Constraint::kRegex, .source = "[a-c]+\"?"}, "abc\"", "abd"},
      {{.kind = Constraint::kGbnf, .source = "root ::= \"x\" [0-9]"}, "x7", "xx"},
      {{.kind = Constraint::kChoice, .choices = {"yes", "no"}}, "no", "maybe"}};
  const ChatTools tools = {.tools = {{.name = "now"}, {.name = "log", .strict = true}}};
  for (const Family& family : Families()) {
    const ChatFormat format = *ChatFormat::Create(*family.tokenizer, family.own_format);
    const CallSyntax calls = format.calls();
    const bool is_json = calls.arguments == CallSyntax::Arguments::kJson;
    const std::string call = calls.call + (calls.names_ids ? "functions.now:0" : "now") + calls.name_end +
                             calls.spacing.behind_name + (is_json ? "{}" : "") +
                             calls.spacing.before_call_end + calls.call_end;
    const std::string answer = calls.spacing.before_begin + calls.begin + calls.spacing.behind_begin + call +
                               calls.spacing.before_end + calls.end;
    for (const auto& [constraint, good, bad] : cases) {
      SCOPED_TRACE(std::string(family.name) + " " + good);
      const ToolTag tag = *MakeToolTag(calls, tools, *family.tokenizer, AlternativePart(constraint));
      EXPECT_TRUE(tag.trigger_ids.empty());
      EXPECT_TRUE(Takes(family, tag, good));
      EXPECT_FALSE(Takes(family, tag, bad));
      EXPECT_TRUE(Takes(family, tag, answer)) << answer;
      EXPECT_FALSE(Takes(family, tag, good + answer));
    }
    ChatTools forced = tools;
    forced.choice = "required";
    const ToolTag calls_alone =
        *MakeToolTag(calls, forced, *family.tokenizer, AlternativePart(cases[0].constraint));
    EXPECT_FALSE(Takes(family, calls_alone, "48"));
    EXPECT_TRUE(Takes(family, calls_alone, answer));
  }
}

}  // namespace
}  // namespace foredraft
