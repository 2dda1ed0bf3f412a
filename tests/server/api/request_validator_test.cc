#include "server/api/request_validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "base/check.h"

namespace foredraft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr int kVocabSize = 768, kMaxSeqLen = 128;

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
  absl::StatusOr<CheckedRequest> Check(const v1::GenerateRequest& wire) { return Check(wire, Limits()); }
  absl::StatusOr<CheckedRequest> Check(const v1::GenerateRequest& wire, const RequestLimits& limits) {
    return RequestValidator(limits, *tokenizer_, &*chat_format_).Check(wire);
  }

  static v1::GenerateRequest Good() {
    v1::GenerateRequest wire;
    wire.mutable_token_ids()->add_ids(5);
    wire.set_max_tokens(10);
    return wire;
  }

  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<ChatFormat> chat_format_;
};

TEST_F(RequestValidatorTest, NamesEveryBadFieldWithValueAndLimit) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN(),
                  kInf = std::numeric_limits<float>::infinity();
  using Wire = v1::GenerateRequest;
  struct Case {
    const char* name;
    std::function<void(Wire&)> spoil;
    std::vector<std::string> says;
  };
  const std::vector<Case> cases = {
      {"no input", [](Wire& w) { w.clear_token_ids(); }, {"input: empty", "text, token_ids, chat"}},
      {"empty text", [](Wire& w) { w.set_text(""); }, {"text: empty"}},
      {"empty ids", [](Wire& w) { w.mutable_token_ids()->clear_ids(); }, {"token_ids: empty"}},
      {"empty chat", [](Wire& w) { w.mutable_chat(); }, {"chat.messages: empty"}},
      {"role",
       [](Wire& w) { w.mutable_chat()->add_messages()->set_role("tool"); },
       {"chat.messages[0].role: tool", "system, user, assistant"}},
      {"too many messages",
       [](Wire& w) {
         for (int i = 0; i <= kMaxChatMessages; ++i) w.mutable_chat()->add_messages()->set_role("user");
       },
       {"chat.messages: 1,025 messages", "1,024"}},
      {"id too high", [](Wire& w) { w.mutable_token_ids()->add_ids(768); }, {"token_ids[1]: 768", "0..767"}},
      {"id negative", [](Wire& w) { w.mutable_token_ids()->add_ids(-1); }, {"token_ids[1]: -1", "0..767"}},
      {"text of bytes that cannot fit",
       [](Wire& w) { w.set_text(std::string(100'000, 'a')); },
       {"text: 100,000 bytes", "max_seq_len 128"}},
      {"chat of bytes that cannot fit",
       [](Wire& w) {
         w.mutable_chat()->add_messages()->set_role("user");
         w.mutable_chat()->mutable_messages(0)->set_content(std::string(100'000, 'a'));
       },
       {"chat: 100,000 bytes"}},
      {"prompt fills max_seq_len",
       [](Wire& w) { w.mutable_token_ids()->mutable_ids()->Resize(kMaxSeqLen, 5); },
       {"token_ids: prompt of 128 tokens", "max_seq_len is 128"}},
      {"prompt too long as text",
       [](Wire& w) {
         std::string text;
         for (int i = 0; i < 200; ++i) text += "7 ";
         w.set_text(text);
       },
       {"text: prompt of ", "max_seq_len is 128"}},
      {"max_tokens 0", [](Wire& w) { w.set_max_tokens(0); }, {"max_tokens: 0", "at least 1"}},
      {"max_tokens negative", [](Wire& w) { w.set_max_tokens(-5); }, {"max_tokens: -5", "at least 1"}},
      {"max_tokens too many",
       [](Wire& w) { w.set_max_tokens(128); },
       {"max_tokens: prompt 1 + max_tokens 128 is 129", "max_seq_len is 128"}},
      {"max_tokens overflow",
       [](Wire& w) { w.set_max_tokens(std::numeric_limits<int32_t>::max()); },
       {"max_tokens: prompt 1 + max_tokens 2,147,483,647 is 2,147,483,648"}},
      {"temperature negative",
       [](Wire& w) { w.mutable_sampling()->set_temperature(-0.5f); },
       {"sampling.temperature: -0.5", "0..100"}},
      {"temperature nan",
       [=](Wire& w) { w.mutable_sampling()->set_temperature(kNan); },
       {"sampling.temperature: nan"}},
      {"temperature inf",
       [=](Wire& w) { w.mutable_sampling()->set_temperature(kInf); },
       {"sampling.temperature: inf"}},
      {"top_p 0", [](Wire& w) { w.mutable_sampling()->set_top_p(0); }, {"sampling.top_p: 0", "above 0 to 1"}},
      {"top_p high", [](Wire& w) { w.mutable_sampling()->set_top_p(1.5f); }, {"sampling.top_p: 1.5"}},
      {"top_p nan", [=](Wire& w) { w.mutable_sampling()->set_top_p(kNan); }, {"sampling.top_p: nan"}},
      {"top_k", [](Wire& w) { w.mutable_sampling()->set_top_k(-2); }, {"sampling.top_k: -2"}},
      {"min_p", [](Wire& w) { w.mutable_sampling()->set_min_p(1.25f); }, {"sampling.min_p: 1.25", "0..1"}},
      {"min_p nan", [=](Wire& w) { w.mutable_sampling()->set_min_p(kNan); }, {"sampling.min_p: nan"}},
      {"repetition",
       [](Wire& w) { w.mutable_sampling()->set_repetition_penalty(0); },
       {"sampling.repetition_penalty: 0", "above 0"}},
      {"repetition inf",
       [=](Wire& w) { w.mutable_sampling()->set_repetition_penalty(kInf); },
       {"sampling.repetition_penalty: inf"}},
      {"presence",
       [](Wire& w) { w.mutable_sampling()->set_presence_penalty(2.5f); },
       {"sampling.presence_penalty: 2.5", "-2..2"}},
      {"presence nan",
       [=](Wire& w) { w.mutable_sampling()->set_presence_penalty(kNan); },
       {"sampling.presence_penalty: nan"}},
      {"frequency",
       [](Wire& w) { w.mutable_sampling()->set_frequency_penalty(-3); },
       {"sampling.frequency_penalty: -3", "-2..2"}},
      {"logprobs high", [](Wire& w) { w.set_logprobs(21); }, {"logprobs: 21", "0..20"}},
      {"logprobs negative", [](Wire& w) { w.set_logprobs(-1); }, {"logprobs: -1", "0..20"}},
      {"draft cap", [](Wire& w) { w.set_max_draft_tokens(8); }, {"max_draft_tokens: 8", "0..7"}},
      {"draft cap negative", [](Wire& w) { w.set_max_draft_tokens(-1); }, {"max_draft_tokens: -1", "0..7"}},
      {"timeout", [](Wire& w) { w.set_timeout_s(0); }, {"timeout_s: 0", "above 0"}},
      {"timeout nan", [=](Wire& w) { w.set_timeout_s(kNan); }, {"timeout_s: nan"}},
      {"request id length",
       [](Wire& w) { w.set_request_id(std::string(129, 'x')); },
       {"request_id: 129 bytes", "at most 128"}},
      {"request id control",
       [](Wire& w) { w.set_request_id("a\nb"); },
       {"request_id: has control characters"}},
      {"stop empty", [](Wire& w) { w.add_stop(""); }, {"stop[0]: empty", "1..256"}},
      {"stop long", [](Wire& w) { w.add_stop(std::string(257, 'x')); }, {"stop[0]: 257 bytes", "1..256"}},
      {"stop many",
       [](Wire& w) {
         for (int i = 0; i <= kMaxStopStrings; ++i) w.add_stop("x");
       },
       {"stop: 17 strings", "at most 16"}},
      {"stop id", [](Wire& w) { w.add_stop_token_ids(768); }, {"stop_token_ids[0]: 768", "0..767"}},
      {"stop ids many",
       [](Wire& w) { w.mutable_stop_token_ids()->Resize(64, 5); },
       {"stop_token_ids: 64 ids", "at most 63"}},
  };
  for (const Case& test : cases) {
    v1::GenerateRequest wire = Good();
    test.spoil(wire);
    const absl::Status status = Check(wire).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << test.name << ": " << status.ToString();
    for (const std::string& text : test.says) EXPECT_THAT(status.message(), HasSubstr(text)) << test.name;
  }
}

TEST_F(RequestValidatorTest, TakesTheLimitsThemselves) {
  v1::GenerateRequest wire = Good();
  wire.set_request_id(std::string(128, 'x'));
  wire.set_max_tokens(kMaxSeqLen - 1);
  wire.mutable_sampling()->set_top_p(1);
  wire.mutable_sampling()->set_min_p(1);
  wire.mutable_sampling()->set_presence_penalty(-2);
  wire.mutable_sampling()->set_frequency_penalty(2);
  wire.mutable_sampling()->set_top_k(-1);
  wire.set_logprobs(20);
  wire.set_max_draft_tokens(7);
  wire.mutable_stop_token_ids()->Resize(63, 767);
  for (int i = 0; i < kMaxStopStrings; ++i) wire.add_stop(std::string(256, 'x'));
  const auto checked = Check(wire);
  ASSERT_TRUE(checked.ok()) << checked.status().ToString();
  EXPECT_EQ(checked->request.max_tokens, 127);
  EXPECT_EQ(checked->request.sampling.top_k, 0);
  EXPECT_EQ(checked->request.stop_ids.size(), 64u);
}

TEST_F(RequestValidatorTest, FillsAbsentFieldsFromTheCheckpointThenNeutral) {
  RequestLimits limits = Limits();
  limits.defaults = {.temperature = 0.6, .top_p = 0.95};
  auto checked = Check(Good(), limits);
  ASSERT_TRUE(checked.ok());
  EXPECT_FLOAT_EQ(checked->request.sampling.temperature, 0.6f);
  EXPECT_FLOAT_EQ(checked->request.sampling.top_p, 0.95f);
  EXPECT_FLOAT_EQ(checked->request.sampling.repetition_penalty, 1);
  EXPECT_EQ(checked->request.logprob_count, -1);
  EXPECT_EQ(checked->request.draft_cap, 7);

  v1::GenerateRequest wire = Good();
  wire.mutable_sampling()->set_temperature(0);
  checked = Check(wire, limits);
  ASSERT_TRUE(checked.ok());
  EXPECT_EQ(checked->request.sampling.temperature, 0);
}

TEST_F(RequestValidatorTest, GivesAbsentMaxTokensWhatIsLeft) {
  v1::GenerateRequest wire = Good();
  wire.clear_max_tokens();
  EXPECT_EQ(Check(wire)->request.max_tokens, kMaxSeqLen - 1);
  RequestLimits limits = Limits();
  limits.size.pool_len = 64;
  EXPECT_EQ(Check(wire, limits)->request.max_tokens, 63);
  wire.set_max_tokens(64);
  EXPECT_THAT(std::string(Check(wire, limits).status().message()), HasSubstr("the KV pool holds 64"));
}

TEST_F(RequestValidatorTest, DrawsASeedOnlyWhereNoneIsGiven) {
  v1::GenerateRequest wire = Good();
  EXPECT_NE(Check(wire)->request.sampling.seed, Check(wire)->request.sampling.seed);
  wire.mutable_sampling()->set_seed(0);
  EXPECT_EQ(Check(wire)->request.sampling.seed, 0u);
}

TEST_F(RequestValidatorTest, IgnoreEosLeavesOnlyTheRequestsOwnStopTokens) {
  v1::GenerateRequest wire = Good();
  wire.add_stop_token_ids(9);
  EXPECT_THAT(Check(wire)->request.stop_ids, ElementsAre(1, 9));
  wire.set_ignore_eos(true);
  EXPECT_THAT(Check(wire)->request.stop_ids, ElementsAre(9));
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
    v1::GenerateRequest wire;
    wire.mutable_token_ids()->mutable_ids()->Assign(test.ids.begin(), test.ids.end());
    EXPECT_EQ(Check(wire)->request.prompt_phase, test.phase);
  }
}

TEST_F(RequestValidatorTest, NewThinkingTokensAreForRequestsThatComeAfterThem) {
  RequestValidator validator(Limits(), *tokenizer_, &*chat_format_);
  v1::GenerateRequest wire;
  wire.mutable_token_ids()->add_ids(5);
  const absl::StatusOr<CheckedRequest> before = validator.Check(wire);
  validator.SetThinking({.begin = 5, .end = 6});
  const absl::StatusOr<CheckedRequest> after = validator.Check(wire);
  EXPECT_EQ(before->request.thinking, Limits().thinking);
  EXPECT_EQ(before->request.prompt_phase, Phase::kAnswer);
  EXPECT_EQ(after->request.thinking, (ThinkingIds{.begin = 5, .end = 6}));
  EXPECT_EQ(after->request.prompt_phase, Phase::kThinking);
  EXPECT_EQ(after->spec.thinking, after->request.thinking);
}

TEST_F(RequestValidatorTest, TextGetsBosAndTokenIdsNever) {
  v1::GenerateRequest wire;
  wire.set_text("7");
  EXPECT_EQ(Check(wire)->request.prompt_ids.front(), tokenizer_->bos_id());
  EXPECT_THAT(Check(Good())->request.prompt_ids, ElementsAre(5));
}

TEST_F(RequestValidatorTest, TextBecomesASpecialTokenOnlyOnRequest) {
  v1::GenerateRequest wire;
  wire.set_text("</think>");
  const int32_t end = *tokenizer_->AddedTokenId("</think>");
  EXPECT_THAT(Check(wire)->request.prompt_ids, testing::Not(testing::Contains(end)));
  wire.set_parse_special(true);
  EXPECT_THAT(Check(wire)->request.prompt_ids, testing::Contains(end));
}

}  // namespace
}  // namespace foredraft
