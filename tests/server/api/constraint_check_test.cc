// What a request asks of its output, from the client's fields to the scheduler's constraint.

#include "server/api/constraint_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/api/request_validator.h"

namespace foredraft {
namespace {

using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr int kVocabSize = 768;
using Ids = std::vector<int32_t>;

ClientConstraint Asks(Constraint::Kind kind, std::string source) {
  return {.field = absl::StrCat("constraint.", std::string(ConstraintField(kind))),
          .kind = kind,
          .source = std::move(source)};
}

class ConstraintCheckTest : public testing::Test {
 protected:
  ConstraintCheckTest()
      : tokenizer_(*Tokenizer::Load("deploy/models/abacus/tokenizer.json")),
        think_(*tokenizer_->AddedTokenId("<think>")),
        end_think_(*tokenizer_->AddedTokenId("</think>")),
        metrics_(MetricsOptions{.model_name = "abacus"}),
        compiler_(*MakeVocabulary(*tokenizer_, kVocabSize, {1}), ConstraintsConfig{}, metrics_) {
    chat_format_.emplace(*ChatFormat::Create(*tokenizer_));
  }

  absl::StatusOr<CheckedRequest> Check(const ClientRequest& client, ConstraintCompiler* compiler) {
    const RequestLimits limits = {.vocab_size = kVocabSize,
                                  .size = {.max_seq_len = 4096},
                                  .longest_token_bytes = 32,
                                  .eos_ids = {1},
                                  .thinking = {.begin = think_, .end = end_think_}};
    return RequestValidator(limits, *tokenizer_, &*chat_format_, "", compiler).Check(client);
  }
  absl::StatusOr<CheckedRequest> Check(const ClientRequest& client) { return Check(client, &compiler_); }
  std::string Refusal(const ClientRequest& client) {
    const absl::Status status = Check(client).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  }
  static ClientRequest Good() {
    return {.input = Ids{5}, .constraint = Asks(Constraint::kRegex, "[0-9]+"), .max_tokens = 10};
  }
  static ClientRequest Chat(ChatTools tools) {
    return {.input = ChatMessages{{.role = "user", .content = "a"}}, .tools = std::move(tools)};
  }
  double Counted(const char* name, const char* label) {
    for (const prometheus::MetricFamily& family : metrics_.Collect()) {
      if (family.name != name) continue;
      for (const prometheus::ClientMetric& metric : family.metric) {
        for (const auto& with : metric.label) {
          if (with.value == label) return metric.counter.value;
        }
      }
    }
    return -1;
  }
  // Whether the output may begin with this token.
  static bool MayBegin(const RequestConstraint& constraint, int32_t id) {
    Matcher matcher(constraint.grammar, constraint.end_ids);
    return (*matcher.Mask())->Allows(id);
  }
  int32_t Id(const char* text) { return tokenizer_->Encode(text, {.add_bos = false})->front(); }

  const std::unique_ptr<Tokenizer> tokenizer_;
  const int32_t think_, end_think_;
  std::optional<ChatFormat> chat_format_;
  Metrics metrics_;
  ConstraintCompiler compiler_;
};

TEST_F(ConstraintCheckTest, AGrammarReachesTheScheduler) {
  const auto checked = Check(Good());
  ASSERT_TRUE(checked.ok()) << checked.status();
  const RequestConstraint& made = checked->request.constraint;
  ASSERT_NE(made.grammar, nullptr);
  EXPECT_FALSE(made.from_first_token);
  EXPECT_THAT(made.trigger_ids, IsEmpty());
  EXPECT_TRUE(MayBegin(made, Id("7")));
  EXPECT_FALSE(MayBegin(made, Id("a")));
  EXPECT_FALSE(MayBegin(made, 1)) << "an output that is not complete has no end";
  EXPECT_EQ(Counted("foredraft_constrained_requests_total", "regex"), 1);
  // Without a constraint there is no grammar.
  ClientRequest free = Good();
  free.constraint.reset();
  EXPECT_EQ(Check(free)->request.constraint.grammar, nullptr);
}

TEST_F(ConstraintCheckTest, EqualConstraintsShareAGrammar) {
  const auto first = Check(Good())->request.constraint.grammar;
  EXPECT_EQ(Check(Good())->request.constraint.grammar, first);
  const ConstraintCacheCounts counts = compiler_.counts();
  EXPECT_EQ(counts.hits, 1);
  EXPECT_EQ(counts.misses, 1);
  EXPECT_GT(counts.bytes, 0);
  // A reload makes a new cache; who runs keeps its grammar.
  compiler_.SetConfig(ConstraintsConfig{.max_depth = 3});
  EXPECT_NE(Check(Good())->request.constraint.grammar, first);
  EXPECT_EQ(compiler_.counts().misses, 2);
}

TEST_F(ConstraintCheckTest, LineEndsMayFollowAThought) {
  ClientRequest client = Good();
  const int32_t line_end = Id("\n");
  const std::vector<int32_t> ids = Check(client)->request.constraint.line_end_ids;
  EXPECT_THAT(ids, Contains(line_end));
  for (const int32_t id : ids) {
    EXPECT_EQ(tokenizer_->TokenBytes(id).find_first_not_of('\n'), std::string_view::npos) << id;
    EXPECT_LE(tokenizer_->TokenBytes(id).size(), size_t{kMostLineEnds}) << id;
  }
  // They are not the grammar's: a thought must have come.
  EXPECT_FALSE(MayBegin(Check(client)->request.constraint, line_end));
  client.constraint->from_first_token = true;
  EXPECT_TRUE(Check(client)->request.constraint.from_first_token);
  EXPECT_THAT(Check(client)->request.constraint.line_end_ids, IsEmpty());
  // A line end that the output may begin with is the output's.
  client = Good();
  client.constraint->source = "\n*[0-9]+";
  EXPECT_THAT(Check(client)->request.constraint.line_end_ids, IsEmpty());
  EXPECT_TRUE(MayBegin(Check(client)->request.constraint, line_end));
}

TEST_F(ConstraintCheckTest, LineEndsBehindTheThoughtOfAConstrainedChatAreNoText) {
  ClientRequest client = Chat({});
  EXPECT_EQ(Check(client)->spec.answer->line_ends_behind_thought, 0);
  client.constraint = Asks(Constraint::kRegex, "[0-9]+");
  EXPECT_EQ(Check(client)->spec.answer->line_ends_behind_thought, 2);
  client.constraint = Asks(Constraint::kRegex, "\\s*[0-9]+");
  EXPECT_EQ(Check(client)->spec.answer->line_ends_behind_thought, 0);
  client = Chat({.tools = {{.name = "f"}}, .choice = "required"});
  EXPECT_EQ(Check(client)->spec.answer->line_ends_behind_thought, 2);
}

TEST_F(ConstraintCheckTest, StopTokensThatAreAddedEndTheOutput) {
  ClientRequest client = Good();
  client.stop_token_ids = {think_, Id("7"), think_};
  const RequestConstraint made = Check(client)->request.constraint;
  EXPECT_THAT(made.end_ids, ElementsAre(think_)) << "others follow their bytes, and EOS is every output's";
}

TEST_F(ConstraintCheckTest, EveryKindIsTaken) {
  ClientRequest client = Good();
  for (const auto& [kind, source] : std::vector<std::pair<Constraint::Kind, const char*>>{
           {Constraint::kJsonSchema, R"({"type":"object"})"},
           {Constraint::kJsonObject, ""},
           {Constraint::kGbnf, "root ::= \"a\""},
           {Constraint::kStructuralTag, R"({"type":"any_text"})"}}) {
    client.constraint = Asks(kind, source);
    const auto checked = Check(client);
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_NE(checked->request.constraint.grammar, nullptr);
  }
  client.constraint = Asks(Constraint::kStructuralTag, R"({"type":"triggered_tags","triggers":["<think>"],
      "tags":[{"begin":"<think>","content":{"type":"const_string","value":"7"},"end":""}]})");
  EXPECT_THAT(Check(client)->request.constraint.trigger_ids, ElementsAre(think_));
  client.constraint = Asks(Constraint::kChoice, "");
  client.constraint->choices = {"1", "2"};
  EXPECT_TRUE(MayBegin(Check(client)->request.constraint, Id("2")));
  client.constraint = Asks(Constraint::kJsonObject, "");
  client.constraint->compact = true;
  const auto compact = Check(client)->request.constraint.grammar;
  client.constraint->compact = false;
  EXPECT_NE(Check(client)->request.constraint.grammar, compact);
}

struct Refused {
  const char* name;
  void (*spoil)(ClientRequest&);
  const char* says;
};
const Refused kRefused[] = {
    {"empty", [](ClientRequest& c) { c.constraint = ClientConstraint{.field = "constraint"}; },
     "constraint: empty, allowed one of json_schema, json_object: true, regex, choice, grammar, "
     "structural_tag"},
    {"ignore_eos", [](ClientRequest& c) { c.ignore_eos = true; },
     "ignore_eos: true, allowed false with a constraint"},
    {"min_tokens", [](ClientRequest& c) { c.sampling.min_tokens = 5; },
     "sampling.min_tokens: 5, allowed 0 with a constraint"},
    {"not JSON", [](ClientRequest& c) { c.constraint = Asks(Constraint::kJsonSchema, R"({"type":"object)"); },
     "constraint.json_schema: not JSON at byte 16, allowed JSON text"},
    {"keyword",
     [](ClientRequest& c) {
       c.constraint = Asks(Constraint::kJsonSchema, R"({"properties":{"age":{"not":{"format":"date"}}}})");
     },
     "constraint.json_schema: #/properties/age/not: not supported, allowed a schema without it"},
    {"nothing satisfies",
     [](ClientRequest& c) {
       c.constraint = Asks(Constraint::kJsonSchema,
                           R"({"type":"object","properties":{"a":{"enum":[]}},"required":["a"]})");
     },
     "constraint.json_schema: #/properties/a"},
    {"size",
     [](ClientRequest& c) { c.constraint = Asks(Constraint::kJsonSchema, std::string(301'000, ' ')); },
     "constraint.json_schema: 301000 bytes, allowed at most constraints.max_source_kib = 256 KiB"},
    {"look-around", [](ClientRequest& c) { c.constraint = Asks(Constraint::kRegex, "abcd(?=e)"); },
     "constraint.regex: (?= at byte 4: look-around is not supported, allowed regular expressions without it"},
    {"recursion",
     [](ClientRequest& c) {
       c.constraint = Asks(Constraint::kGbnf, "root ::= expr\nterm ::= expr \"+\"\nexpr ::= term | \"1\"");
     },
     "rule \"expr\" calls itself first through \"term\", allowed right recursion"},
    {"choices", [](ClientRequest& c) { c.constraint = Asks(Constraint::kChoice, ""); },
     "constraint.choice: 0 choices, allowed 1..1000"}};

TEST_F(ConstraintCheckTest, RefusesByName) {
  for (const Refused& test : kRefused) {
    ClientRequest client = Good();
    test.spoil(client);
    EXPECT_THAT(Refusal(client), HasSubstr(test.says)) << test.name;
  }
  EXPECT_EQ(Counted("foredraft_constraint_refused_total", "combination"), 2);
  EXPECT_EQ(Counted("foredraft_constraint_refused_total", "limit"), 1);
  EXPECT_EQ(Counted("foredraft_constraint_refused_total", "source"), 7);
}

TEST_F(ConstraintCheckTest, RefusalsAreOneShortLine) {
  ClientRequest client = Good();
  client.constraint =
      Asks(Constraint::kStructuralTag, R"({"type":"triggered_tags","triggers":["x"],"tags":[{"begin":")" +
                                           std::string(100'000, 'y') +
                                           R"(\n","content":{"type":"any_text"},"end":"z"}]})");
  const std::string text = Refusal(client);
  EXPECT_LT(text.size(), 1200u);
  EXPECT_EQ(text.find('\n'), std::string::npos);
}

TEST_F(ConstraintCheckTest, WhereItIsOffItIsRefused) {
  const std::vector<ClientRequest> requests = {
      Good(), Chat({.tools = {{.name = "f"}}, .choice = "required"}),
      Chat({.tools = {{.name = "e"}, {.name = "f", .strict = true}}}),
      Chat({.tools = {{.name = "e"}, {.name = "f", .strict = true}}, .allowed = {"e"}})};
  const std::string texts[] = {
      "constraint.regex: structured output is off (constraints: null), allowed unset",
      "chat.tool_choice: \"required\", allowed auto, none: structured output is off (constraints: null)",
      "chat.tools[1].strict: true, allowed false: structured output is off (constraints: null)",
      "chat.allowed_tools: given, allowed unset: structured output is off (constraints: null)"};
  ConstraintCompiler off(nullptr, std::nullopt, metrics_);
  off.SetConfig(ConstraintsConfig{});  // it was off at the start
  for (size_t i = 0; i < requests.size(); ++i) {
    EXPECT_EQ(Check(requests[i], nullptr).status().message(), texts[i]);
    EXPECT_EQ(Check(requests[i], &off).status().message(), texts[i]);
    compiler_.SetConfig(std::nullopt);  // a reload
    EXPECT_EQ(Refusal(requests[i]), texts[i]);
    compiler_.SetConfig(ConstraintsConfig{});
    EXPECT_TRUE(Check(requests[i]).ok()) << Check(requests[i]).status();
  }
  EXPECT_EQ(Counted("foredraft_constraint_refused_total", "off"), 8);
}

TEST_F(ConstraintCheckTest, ForcedAcceptanceTakesNoConstraint) {
  compiler_.SetForced(true);
  EXPECT_EQ(
      Refusal(Good()),
      "constraint.regex: given while speculative_config.forced_acceptance_length is set, allowed unset");
  compiler_.SetForced(false);
  EXPECT_TRUE(Check(Good()).ok());
}

TEST_F(ConstraintCheckTest, ToolsGiveAConstraintWhereTheyMust) {
  const std::vector<ChatTool> plain = {{.name = "f"}};
  EXPECT_EQ(Check(Chat({.tools = plain}))->request.constraint.grammar, nullptr);
  EXPECT_EQ(
      Check(Chat({.tools = {{.name = "f", .strict = true}}, .choice = "none"}))->request.constraint.grammar,
      nullptr);
  const auto forced = Check(Chat({.tools = plain, .choice = "required"}));
  ASSERT_TRUE(forced.ok()) << forced.status();
  EXPECT_THAT(forced->request.constraint.line_end_ids, Contains(Id("\n"))) << "behind the thought";
  EXPECT_TRUE(MayBegin(forced->request.constraint, Id("<")));
  EXPECT_FALSE(MayBegin(forced->request.constraint, Id("a")));
  // abacus has no tokens for calls: the whole answer is masked, and free text is allowed in it.
  const auto strict = Check(Chat({.tools = {{.name = "f", .strict = true}}}));
  ASSERT_TRUE(strict.ok()) << strict.status();
  EXPECT_THAT(strict->request.constraint.trigger_ids, IsEmpty());
  EXPECT_TRUE(MayBegin(strict->request.constraint, Id("a")));
  EXPECT_EQ(Counted("foredraft_constrained_requests_total", "tools"), 2);
  ClientRequest some = Chat({.tools = {{.name = "e"}, {.name = "f"}}, .allowed = {"e"}});
  EXPECT_NE(Check(some)->request.constraint.grammar, nullptr);
  some.sampling.min_tokens = 1;
  EXPECT_EQ(Refusal(some), "sampling.min_tokens: 1, allowed 0 with chat.allowed_tools");
  EXPECT_EQ(Refusal(Chat({.tools = plain, .allowed = {"f", "g"}})),
            "chat.allowed_tools[1]: \"g\", allowed a name of chat.tools");
  EXPECT_EQ(Refusal(Chat({.tools = plain, .choice = "function:f", .allowed = {"f"}})),
            "chat.allowed_tools: given with chat.tool_choice \"function:f\", allowed with auto and required");
}

TEST_F(ConstraintCheckTest, RemovedToolsGiveAConstraintWhereItIsOn) {
  const auto without_f = [](const char* again) {
    ClientRequest client = Chat({.tools = {{.name = "e"}, {.name = "f"}}});
    auto& messages = std::get<ChatMessages>(client.input);
    messages.push_back({.role = "system", .tool_changes = {{.name = "f", .removes = true}}});
    if (*again != 0) messages.push_back({.role = "system", .tool_changes = {{.name = again}}});
    return client;
  };
  const auto checked = Check(without_f(""));
  ASSERT_TRUE(checked.ok()) << checked.status();
  EXPECT_NE(checked->request.constraint.grammar, nullptr);
  EXPECT_TRUE(MayBegin(checked->request.constraint, Id("a")));
  EXPECT_EQ(Check(without_f("f"))->request.constraint.grammar, nullptr) << "it is there again";
  ClientRequest client = without_f("");
  client.sampling.min_tokens = 1;
  EXPECT_EQ(Refusal(client), "sampling.min_tokens: 1, allowed 0 with removals of tools");
  client.tools.choice = "none";
  EXPECT_TRUE(Check(client).ok()) << Check(client).status();
  client = without_f("");
  const std::string left = ", allowed with a tool that no message of the conversation has removed";
  client.tools.choice = "function:f";
  EXPECT_EQ(Refusal(client), "chat.tool_choice: \"function:f\"" + left);
  client.tools.choice = "required";
  EXPECT_TRUE(Check(client).ok()) << Check(client).status();
  std::get<ChatMessages>(client.input)
      .push_back({.role = "system", .tool_changes = {{.name = "e", .removes = true}}});
  EXPECT_EQ(Refusal(client), "chat.tool_choice: \"required\"" + left);
  // Where it is off, a call of the tool would be text.
  compiler_.SetConfig(std::nullopt);
  const auto off = Check(without_f(""));
  ASSERT_TRUE(off.ok()) << off.status();
  EXPECT_EQ(off->request.constraint.grammar, nullptr);
  ASSERT_EQ(off->spec.answer->tools.size(), 1u);
  EXPECT_TRUE(Check(without_f(""), nullptr).ok());
}

// Codex sends both with every request: the answer is calls, or JSON.
TEST_F(ConstraintCheckTest, WithToolsTheAnswerIsCallsOrWhatTheConstraintSays) {
  ClientRequest client = Chat({.tools = {{.name = "f"}}});
  client.constraint = Asks(Constraint::kJsonObject, "");
  const auto both = Check(client);
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_TRUE(MayBegin(both->request.constraint, Id("{")));
  EXPECT_TRUE(MayBegin(both->request.constraint, Id("<")));
  EXPECT_FALSE(MayBegin(both->request.constraint, Id("a")));
  EXPECT_EQ(Counted("foredraft_constrained_requests_total", "json_object"), 1);
  client.tools.choice = "required";  // calls alone
  EXPECT_FALSE(MayBegin(Check(client)->request.constraint, Id("{")));
  client.tools.choice = "none";  // JSON alone
  EXPECT_FALSE(MayBegin(Check(client)->request.constraint, Id("<")));
  client.tools.choice = "";
  client.constraint = Asks(Constraint::kRegex, "[0-9");
  EXPECT_THAT(Refusal(client), HasSubstr("constraint.regex: "));
  client.constraint = Asks(Constraint::kStructuralTag, R"({"type":"any_text"})");
  EXPECT_EQ(Refusal(client), "constraint.structural_tag: given with chat.tools, allowed one of them");
}

TEST_F(ConstraintCheckTest, AModelWithoutAnEndHasNoConstraints) {
  ConstraintCompiler endless(*MakeVocabulary(*tokenizer_, kVocabSize, {}), ConstraintsConfig{}, metrics_);
  RequestLimits limits = {.vocab_size = kVocabSize, .size = {.max_seq_len = 100}, .longest_token_bytes = 32};
  const RequestValidator validator(limits, *tokenizer_, nullptr, "", &endless);
  EXPECT_EQ(validator.Check(Good()).status().message(),
            "constraint.regex: given to a model without a token that ends outputs, allowed unset");
  ClientRequest with_stop = Good();
  with_stop.stop_token_ids = {think_};
  EXPECT_TRUE(validator.Check(with_stop).ok());
}

TEST(MakeVocabulary, AddedAndEndTokensMatchNoBytes) {
  const auto tokenizer = *Tokenizer::Load("deploy/models/abacus/tokenizer.json");
  const int32_t think = *tokenizer->AddedTokenId("<think>");
  const int32_t seven = tokenizer->Encode("7", {.add_bos = false})->front();
  const auto vocabulary = *MakeVocabulary(*tokenizer, kVocabSize, {seven, -1, 5000});
  EXPECT_EQ(vocabulary->size(), kVocabSize);
  EXPECT_THAT(vocabulary->end_ids(), ElementsAre(seven));
  EXPECT_FALSE(vocabulary->IsOrdinary(think) || vocabulary->IsOrdinary(seven) || vocabulary->IsOrdinary(767));
  EXPECT_EQ(vocabulary->Find("<think>"), think);
}

}  // namespace
}  // namespace foredraft
