#include "server/api/request_validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

namespace foredraft {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kVocabSize = 768, kMaxSeqLen = 128;
using Ids = std::vector<int32_t>;

class RequestValidatorTest : public testing::Test {
 protected:
  RequestValidatorTest() : tokenizer_(*Tokenizer::Load("deploy/models/abacus/tokenizer.json")) {
    chat_format_.emplace(*ChatFormat::Create(*tokenizer_));
  }

  RequestLimits Limits() const {
    return {.vocab_size = kVocabSize,
            .size = {.max_seq_len = kMaxSeqLen},
            .longest_token_bytes = 32,
            .eos_ids = {1},
            .thinking = {.begin = *tokenizer_->AddedTokenId("<think>"),
                         .end = *tokenizer_->AddedTokenId("</think>")}};
  }
  absl::StatusOr<CheckedRequest> Check(const ClientRequest& client) { return Check(client, Limits()); }
  absl::StatusOr<CheckedRequest> Check(const ClientRequest& client, const RequestLimits& limits) {
    return RequestValidator(limits, *tokenizer_, &*chat_format_).Check(client);
  }

  static ClientRequest Good() { return {.input = Ids{5}, .max_tokens = 10}; }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
};

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();
using Client = ClientRequest;

struct BadField {
  const char* name;
  std::function<void(Client&)> spoil;
  std::vector<std::string> says;
};
const BadField kBadFields[] = {
    {"no input", [](Client& c) { c.input = {}; }, {"input: empty", "text, token_ids, chat"}},
    {"empty text", [](Client& c) { c.input = ""; }, {"text: empty"}},
    {"empty ids", [](Client& c) { c.input = Ids{}; }, {"token_ids: empty"}},
    {"empty chat", [](Client& c) { c.input = ChatMessages{}; }, {"chat.messages: empty"}},
    {"role",
     [](Client& c) { c.input = ChatMessages{{.role = "tool"}}; },
     {"chat.messages[0].role: \"tool\"", "allowed behind"}},
    {"too many messages",
     [](Client& c) { c.input = ChatMessages(kMaxChatMessages + 1, {.role = "user"}); },
     {"chat.messages: 1,025 messages", "1,024"}},
    {"id too high",
     [](Client& c) {
       c.input = Ids{5, 768};
     },
     {"token_ids[1]: 768", "0..767"}},
    {"id negative",
     [](Client& c) {
       c.input = Ids{5, -1};
     },
     {"token_ids[1]: -1", "0..767"}},
    {"text of bytes that cannot fit",
     [](Client& c) { c.input = std::string(100'000, 'a'); },
     {"text: 100,000 bytes", "max_seq_len 128"}},
    {"chat of bytes that cannot fit",
     [](Client& c) { c.input = ChatMessages{{.role = "user", .content = std::string(100'000, 'a')}}; },
     {"chat: 100,000 bytes"}},
    {"prompt fills max_seq_len",
     [](Client& c) { c.input = Ids(kMaxSeqLen, 5); },
     {"token_ids: prompt of 128 tokens", "max_seq_len is 128"}},
    {"prompt too long as text",
     [](Client& c) {
       std::string text;
       for (int i = 0; i < 200; ++i) text += "7 ";
       c.input = text;
     },
     {"text: prompt of ", "max_seq_len is 128"}},
    {"max_tokens 0", [](Client& c) { c.max_tokens = 0; }, {"max_tokens: 0", "at least 1"}},
    {"max_tokens negative", [](Client& c) { c.max_tokens = -5; }, {"max_tokens: -5", "at least 1"}},
    {"max_tokens too many",
     [](Client& c) { c.max_tokens = 128; },
     {"max_tokens: prompt 1 + max_tokens 128 is 129", "max_seq_len is 128"}},
    {"max_tokens overflow",
     [](Client& c) { c.max_tokens = std::numeric_limits<int32_t>::max(); },
     {"max_tokens: prompt 1 + max_tokens 2,147,483,647 is 2,147,483,648"}},
    {"temperature negative",
     [](Client& c) { c.sampling.temperature = -0.5f; },
     {"sampling.temperature: -0.5", "0..100"}},
    {"temperature nan", [](Client& c) { c.sampling.temperature = kNan; }, {"sampling.temperature: nan"}},
    {"temperature inf", [](Client& c) { c.sampling.temperature = kInf; }, {"sampling.temperature: inf"}},
    {"top_p 0", [](Client& c) { c.sampling.top_p = 0; }, {"sampling.top_p: 0", "above 0 to 1"}},
    {"top_p high", [](Client& c) { c.sampling.top_p = 1.5f; }, {"sampling.top_p: 1.5"}},
    {"top_p nan", [](Client& c) { c.sampling.top_p = kNan; }, {"sampling.top_p: nan"}},
    {"top_k", [](Client& c) { c.sampling.top_k = -2; }, {"sampling.top_k: -2"}},
    {"min_p", [](Client& c) { c.sampling.min_p = 1.25f; }, {"sampling.min_p: 1.25", "0..1"}},
    {"min_p nan", [](Client& c) { c.sampling.min_p = kNan; }, {"sampling.min_p: nan"}},
    {"repetition",
     [](Client& c) { c.sampling.repetition_penalty = 0; },
     {"sampling.repetition_penalty: 0", "above 0"}},
    {"repetition inf",
     [](Client& c) { c.sampling.repetition_penalty = kInf; },
     {"sampling.repetition_penalty: inf"}},
    {"presence",
     [](Client& c) { c.sampling.presence_penalty = 2.5f; },
     {"sampling.presence_penalty: 2.5", "-2..2"}},
    {"presence nan",
     [](Client& c) { c.sampling.presence_penalty = kNan; },
     {"sampling.presence_penalty: nan"}},
    {"frequency",
     [](Client& c) { c.sampling.frequency_penalty = -3; },
     {"sampling.frequency_penalty: -3", "-2..2"}},
    {"bias of no token",
     [](Client& c) {
       c.sampling.logit_bias = {{-1, 1}};
     },
     {"logit_bias: token -1", "0.."}},
    {"bias of an id too large",
     [](Client& c) {
       c.sampling.logit_bias = {{3, 1}, {1 << 30, 1}};
     },
     {"logit_bias: token 1073741824", "the vocabulary"}},
    {"bias twice",
     [](Client& c) {
       c.sampling.logit_bias = {{5, 1}, {3, 1}, {5, 2}};
     },
     {"logit_bias[5]: given twice"}},
    {"bias too large",
     [](Client& c) {
       c.sampling.logit_bias = {{5, 100.5f}};
     },
     {"logit_bias[5]: 100.5", "-100..100"}},
    {"bias nan",
     [](Client& c) {
       c.sampling.logit_bias = {{5, kNan}};
     },
     {"logit_bias[5]: nan"}},
    {"biases",
     [](Client& c) { c.sampling.logit_bias.resize(513); },
     {"logit_bias: 513 tokens", "at most 512"}},
    {"min_tokens negative", [](Client& c) { c.sampling.min_tokens = -1; }, {"sampling.min_tokens: -1"}},
    {"min_tokens above max_tokens",
     [](Client& c) {
       c.max_tokens = 5;
       c.sampling.min_tokens = 6;
     },
     {"sampling.min_tokens: 6", "0..5"}},
    {"logprobs high", [](Client& c) { c.logprobs = 21; }, {"logprobs: 21", "0..20"}},
    {"logprobs negative", [](Client& c) { c.logprobs = -1; }, {"logprobs: -1", "0..20"}},
    {"draft cap", [](Client& c) { c.max_draft_tokens = 8; }, {"max_draft_tokens: 8", "0..7"}},
    {"priority", [](Client& c) { c.priority = 101; }, {"priority: 101", "-100..100"}},
    {"priority negative", [](Client& c) { c.priority = -101; }, {"priority: -101", "-100..100"}},
    {"priority largest",
     [](Client& c) { c.priority = 2147483647; },
     {"priority: 2,147,483,647", "-100..100"}},
    {"priority smallest", [](Client& c) { c.priority = -2147483647 - 1; }, {"priority: -2,147,483,648"}},
    {"draft cap negative", [](Client& c) { c.max_draft_tokens = -1; }, {"max_draft_tokens: -1", "0..7"}},
    {"timeout", [](Client& c) { c.timeout_s = 0; }, {"timeout_s: 0", "above 0"}},
    {"timeout nan", [](Client& c) { c.timeout_s = kNan; }, {"timeout_s: nan"}},
    {"request id length",
     [](Client& c) { c.request_id = std::string(129, 'x'); },
     {"request_id: 129 bytes", "at most 128"}},
    {"request id control", [](Client& c) { c.request_id = "a\nb"; }, {"request_id: has control characters"}},
    {"stop empty", [](Client& c) { c.stop = {""}; }, {"stop[0]: empty", "1..256"}},
    {"stop long", [](Client& c) { c.stop = {std::string(257, 'x')}; }, {"stop[0]: 257 bytes", "1..256"}},
    {"stop many",
     [](Client& c) { c.stop.assign(kMaxStopStrings + 1, "x"); },
     {"stop: 17 strings", "at most 16"}},
    {"stop id", [](Client& c) { c.stop_token_ids = {768}; }, {"stop_token_ids[0]: 768", "0..767"}},
    {"stop ids many",
     [](Client& c) { c.stop_token_ids.assign(64, 5); },
     {"stop_token_ids: 64 ids", "at most 63"}},
};

TEST_F(RequestValidatorTest, NamesEveryBadFieldWithValueAndLimit) {
  for (const BadField& test : kBadFields) {
    ClientRequest client = Good();
    test.spoil(client);
    const absl::Status status = Check(client).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.name << ": " << status.ToString();
    for (const std::string& text : test.says) EXPECT_THAT(status.message(), HasSubstr(text)) << test.name;
  }
}

TEST_F(RequestValidatorTest, TakesTheLimitsThemselves) {
  ClientRequest client = Good();
  client.request_id = std::string(128, 'x');
  client.max_tokens = kMaxSeqLen - 1;
  client.sampling.top_p = 1;
  client.sampling.min_p = 1;
  client.sampling.presence_penalty = -2;
  client.sampling.frequency_penalty = 2;
  client.sampling.logit_bias = {{9, 100}, {4, -100}};
  client.sampling.min_tokens = 1;
  client.sampling.top_k = -1;
  client.logprobs = 20;
  client.max_draft_tokens = 7;
  client.stop_token_ids.assign(63, 767);
  client.stop.assign(kMaxStopStrings, std::string(256, 'x'));
  const auto checked = Check(client);
  ASSERT_TRUE(checked.ok()) << checked.status().ToString();
  EXPECT_EQ(checked->request.max_tokens, 127);
  EXPECT_EQ(checked->request.sampling.top_k, 0);
  EXPECT_THAT(checked->request.sampling.logit_bias,
              testing::ElementsAre(TokenBias{4, -100}, TokenBias{9, 100}));
  EXPECT_EQ(checked->request.sampling.min_tokens, 1);
  EXPECT_EQ(checked->spec.min_tokens, 1);
  EXPECT_EQ(checked->request.stop_ids.size(), 64u);
}

// Ids that the tokenizer lacks are the vocabulary's padding: legal in prompts, never chosen.
TEST_F(RequestValidatorTest, NoBiasMakesAnIdThatIsNoTokenLikelier) {
  RequestLimits limits = Limits();
  limits.token_count = 632;
  ClientRequest client = Good();
  client.input = Ids{700, 632};
  client.sampling.logit_bias = {{631, 1}};
  EXPECT_TRUE(Check(client, limits).ok()) << Check(client, limits).status();
  client.sampling.logit_bias = {{631, 1}, {632, 1}};
  const absl::Status status = Check(client, limits).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "sampling.logit_bias: token 632, allowed 0..631 (the tokenizer)");
  limits.missing_tokens = {40, 41};
  client.sampling.logit_bias = {{39, 1}, {42, 1}};
  EXPECT_TRUE(Check(client, limits).ok()) << Check(client, limits).status();
  client.sampling.logit_bias = {{41, 1}};
  EXPECT_EQ(Check(client, limits).status().message(),
            "sampling.logit_bias: token 41, allowed ids that the tokenizer has");
}

TEST_F(RequestValidatorTest, FillsAbsentFieldsFromTheCheckpointThenNeutral) {
  RequestLimits limits = Limits();
  limits.default_sampling = {.temperature = 0.6f, .top_p = 0.95f};
  auto checked = Check(Good(), limits);
  ASSERT_TRUE(checked.ok());
  EXPECT_FLOAT_EQ(checked->request.sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(checked->request.sampling.top_p, 0.95f);
  EXPECT_FLOAT_EQ(checked->request.sampling.repetition_penalty, 1);
  EXPECT_EQ(checked->request.logprob_count, -1);
  EXPECT_EQ(checked->request.draft_cap, 7);

  ClientRequest client = Good();
  client.sampling.temperature = 0;
  checked = Check(client, limits);
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->request.sampling.temperature, 0);
}

// Division by these would make several logits infinite, and the lowest id of them would win.
TEST_F(RequestValidatorTest, NumbersTooSmallToDivideByActAsTheirLimit) {
  for (const float temperature : {1e-45f, 1e-40f, 1e-38f, 2e-38f, 1e-21f}) {
    Client client = Good();
    client.sampling.temperature = temperature;
    client.sampling.repetition_penalty = temperature;
    const auto checked = Check(client);
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_EQ(checked->request.sampling.temperature, 0);
    EXPECT_EQ(checked->request.sampling.repetition_penalty, 1e-6f);
  }
}

TEST_F(RequestValidatorTest, AbsentMaxTokensBecomesTheRestOfTheContext) {
  ClientRequest client = Good();
  client.max_tokens.reset();
  EXPECT_EQ(Check(client)->request.max_tokens, kMaxSeqLen - 1);
  RequestLimits limits = Limits();
  limits.size.pool_len = 64;
  EXPECT_EQ(Check(client, limits)->request.max_tokens, 63);
  client.max_tokens = 64;
  EXPECT_THAT(std::string(Check(client, limits).status().message()), HasSubstr("the KV pool holds 64"));
}

TEST_F(RequestValidatorTest, DrawsASeedOnlyWhereNoneIsGiven) {
  ClientRequest client = Good();
  EXPECT_NE(Check(client)->request.sampling.seed, Check(client)->request.sampling.seed);
  client.sampling.seed = 0;
  EXPECT_EQ(Check(client)->request.sampling.seed, 0u);
}

TEST_F(RequestValidatorTest, IgnoreEosLeavesOnlyTheRequestsOwnStopTokens) {
  ClientRequest client = Good();
  client.stop_token_ids = {9};
  EXPECT_THAT(Check(client)->request.stop_ids, ElementsAre(1, 9));
  client.ignore_eos = true;
  EXPECT_THAT(Check(client)->request.stop_ids, ElementsAre(9));
}

TEST_F(RequestValidatorTest, FindsThePhaseAfterTheWholePrompt) {
  const RequestLimits limits = Limits();
  struct Case {
    std::vector<int32_t> ids;
    Phase phase;
  };
  for (const Case& test :
       std::vector<Case>{{{5}, Phase::kAnswer},
                         {{5, limits.thinking.begin, 6}, Phase::kThinking},
                         {{limits.thinking.begin, limits.thinking.end, 6}, Phase::kAnswer},
                         {{limits.thinking.end, limits.thinking.begin}, Phase::kThinking}}) {
    EXPECT_EQ(Check({.input = test.ids})->request.prompt_phase, test.phase);
  }
}

TEST_F(RequestValidatorTest, NewThinkingTokensApplyToLaterRequests) {
  RequestValidator validator(Limits(), *tokenizer_, &*chat_format_);
  const ClientRequest client = {.input = Ids{5}};
  const absl::StatusOr<CheckedRequest> before = validator.Check(client);
  validator.SetThinking({.begin = 5, .end = 6});
  const absl::StatusOr<CheckedRequest> after = validator.Check(client);
  EXPECT_EQ(before->request.thinking, Limits().thinking);
  EXPECT_EQ(before->request.prompt_phase, Phase::kAnswer);
  EXPECT_EQ(after->request.thinking, (ThinkingIds{.begin = 5, .end = 6}));
  EXPECT_EQ(after->request.prompt_phase, Phase::kThinking);
  EXPECT_EQ(after->spec.thinking, after->request.thinking);
}

TEST_F(RequestValidatorTest, AThinkingBudgetIsALimitAndTheTokensBehindIt) {
  RequestLimits limits = Limits();
  limits.wind_down_ids = {7, 8};
  const int32_t end = limits.thinking.end;
  struct Case {
    std::optional<int32_t> budget;
    ThinkingBudget expected;
  };
  for (const Case& c : {Case{std::nullopt, {}},
                        {-1, {}},
                        {0, {.limit = 0, .end_ids = {end}}},
                        {1, {.limit = 1, .end_ids = {end}}},  // no room for the wind-down
                        {2, {.limit = 0, .end_ids = {7, 8, end}}},
                        {9, {.limit = 7, .end_ids = {7, 8, end}}},
                        {kMaxSeqLen, {}}}) {
    ClientRequest client = Good();
    client.thinking_budget = c.budget;
    const absl::StatusOr<CheckedRequest> checked = Check(client, limits);
    ASSERT_TRUE(checked.ok()) << checked.status();
    EXPECT_EQ(checked->request.thinking_budget, c.expected) << c.budget.value_or(-2);
    EXPECT_EQ(checked->spec.thought_limit, c.expected.end_ids.empty() ? -1 : c.expected.limit);
  }
}

TEST_F(RequestValidatorTest, RefusesAThinkingBudgetThatCannotBeKept) {
  ClientRequest client = Good();
  client.thinking_budget = -2;
  EXPECT_THAT(std::string(Check(client).status().message()),
              HasSubstr("thinking_token_budget: -2, allowed -1"));
  client.thinking_budget = 5;
  RequestLimits limits = Limits();
  limits.thinking = {};
  EXPECT_THAT(std::string(Check(client, limits).status().message()), HasSubstr("does not think"));
  RequestValidator forced(Limits(), *tokenizer_, &*chat_format_);
  forced.SetForced(true);
  EXPECT_THAT(std::string(forced.Check(client).status().message()), HasSubstr("forced acceptance"));
  forced.SetForced(false);
  EXPECT_TRUE(forced.Check(client).ok());
}

TEST_F(RequestValidatorTest, TextGetsBosAndTokenIdsNever) {
  EXPECT_EQ(Check({.input = "7"})->request.prompt_ids.front(), tokenizer_->bos_id());
  EXPECT_THAT(Check(Good())->request.prompt_ids, ElementsAre(5));
}

TEST_F(RequestValidatorTest, TextBecomesASpecialTokenOnlyOnRequest) {
  ClientRequest client = {.input = "</think>"};
  const int32_t end = *tokenizer_->AddedTokenId("</think>");
  EXPECT_THAT(Check(client)->request.prompt_ids, testing::Not(testing::Contains(end)));
  client.parse_special = true;
  EXPECT_THAT(Check(client)->request.prompt_ids, testing::Contains(end));
}

TEST_F(RequestValidatorTest, ThinkingIsForChat) {
  ClientRequest client = Good();
  client.choices.thinking = false;
  EXPECT_THAT(std::string(Check(client).status().message()),
              HasSubstr("thinking: given with token_ids, allowed with chat"));
  client.input = ChatMessages{{.role = "user", .content = "a"}};
  EXPECT_THAT(std::string(Check(client).status().message()), HasSubstr("thinking: false, allowed true"));
  client.choices.thinking = true;
  EXPECT_TRUE(Check(client).ok());
  const RequestValidator validator(Limits(), *tokenizer_, &*chat_format_);
  EXPECT_TRUE(validator.Tokenize(client.input, {}, {.thinking = true}).ok());
  EXPECT_THAT(std::string(validator.Tokenize(client.input, {}, {.thinking = false}).status().message()),
              HasSubstr("thinking: false"));
  EXPECT_THAT(std::string(validator.Tokenize("a", {}, {.thinking = true}).status().message()),
              HasSubstr("thinking: given with text"));
  EXPECT_THAT(std::string(validator.Tokenize("a", {}, {.reasoning_effort = "high"}).status().message()),
              HasSubstr("chat.reasoning_effort: given with text, allowed with chat"));
}

TEST_F(RequestValidatorTest, RefusesToolsByName) {
  const auto refusal = [this](ChatTools tools) {
    return std::string(
        Check({.input = ChatMessages{{.role = "user", .content = "a"}}, .tools = std::move(tools)})
            .status()
            .message());
  };
  const std::vector<ChatTool> tools = {{.name = "f"}};
  EXPECT_EQ(refusal({.tools = tools, .choice = "any"}),
            "chat.tool_choice: \"any\", allowed auto, none, required or function:NAME of chat.tools");
  EXPECT_EQ(refusal({.choice = "required"}),
            "chat.tool_choice: \"required\", allowed auto, none without chat.tools");
  EXPECT_THAT(refusal({.tools = {{.name = "f"}, {.name = "a b"}}}), HasSubstr("chat.tools[1].name: \"a b\""));
  EXPECT_THAT(refusal({.tools = {{.name = "f"}, {.name = "f"}}}),
              HasSubstr("chat.tools[1].name: \"f\", allowed a"));
  EXPECT_THAT(refusal({.tools = {{.name = "f", .parameters = "[]"}}}),
              HasSubstr("chat.tools[0].parameters: [], allowed a JSON schema"));
  EXPECT_THAT(refusal({.tools = {{.name = "f", .parameters = "{"}}}),
              HasSubstr("chat.tools[0].parameters: not JSON"));
  EXPECT_THAT(refusal({.tools = std::vector<ChatTool>(1025, {.name = "f"})}),
              HasSubstr("1,025 tools, allowed at most 1,024"));
  EXPECT_THAT(std::string(Check({.input = "a", .tools = {.tools = tools}}).status().message()),
              HasSubstr("chat.tools: given with text, allowed with chat"));
}

TEST_F(RequestValidatorTest, OnlyChatIsTakenApart) {
  EXPECT_FALSE(Check(Good())->spec.answer.has_value());
  EXPECT_FALSE(Check({.input = "a"})->spec.answer.has_value());
  // Tools in the prompt need more room than the fixture's limit.
  RequestLimits limits = Limits();
  limits.size.max_seq_len = 2048;
  ClientRequest chat = {.input = ChatMessages{{.role = "user", .content = "a"}},
                        .tools = {.tools = {{.name = "f"}}}};
  const auto checked = Check(chat, limits);
  ASSERT_TRUE(checked.ok()) << checked.status();
  ASSERT_TRUE(checked->spec.answer.has_value());
  EXPECT_TRUE(checked->spec.answer->begins_in_thinking);
  EXPECT_EQ(checked->spec.answer->tools.size(), 1u);
  const int with_tools = checked->spec.prompt_tokens;
  chat.tools.choice = "none";
  const auto none = Check(chat, limits);
  EXPECT_TRUE(none->spec.answer->tools.empty());
  EXPECT_LT(none->spec.prompt_tokens, with_tools);
  chat.raw_text = true;
  EXPECT_FALSE(Check(chat, limits)->spec.answer.has_value());
}

TEST_F(RequestValidatorTest, WithoutAChatFormatChatIsRefusedWithTheReason) {
  const RequestValidator validator(Limits(), *tokenizer_, nullptr, "the chat template is unknown");
  const ClientRequest client = {.input = ChatMessages{{.role = "user", .content = "a"}}};
  EXPECT_EQ(std::string(validator.Check(client).status().message()),
            "chat: the chat template is unknown, allowed text, token_ids");
  EXPECT_TRUE(validator.Check({.input = "a"}).ok());
  EXPECT_TRUE(validator.Check(Good()).ok());
}

// A checkpoint may name no EOS, or another one than the token that ends the template's answers.
TEST_F(RequestValidatorTest, ChatAlsoEndsWhereTheTemplateEndsAnAnswer) {
  RequestLimits limits = Limits();
  limits.eos_ids = {7};
  const ChatMessages chat = {{.role = "user", .content = "a"}};
  EXPECT_THAT(Check({.input = chat}, limits)->request.stop_ids, ElementsAre(7, tokenizer_->eos_id()));
  EXPECT_THAT(Check({.input = "a"}, limits)->request.stop_ids, ElementsAre(7));
  EXPECT_THAT(Check({.input = chat, .ignore_eos = true}, limits)->request.stop_ids, ElementsAre());
}

}  // namespace
}  // namespace foredraft
