// Answers that a client has begun (continue_final_message, an assistant's last message): the tokens that
// follow depend on nothing but the prompt, under every setting that must not change tokens, and every draft
// is the from-scratch one. What is begun are abacus's own answers, cut within their thought and behind it, so
// that a continued answer can also be compared with the one that was cut.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/same_tokens_fixture.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kAnswers = 10;  // each is cut at two places
const Setting kPlain{.mtp = false, .overlap = false, .graphs = false, .max_batch_size = 1, .reuse = false};

// A question, what the model answers alone, and the same answer begun and continued.
struct Continued {
  Request request;
  std::vector<int32_t> rest;  // of the whole answer; empty where the cut text has other tokens
  bool in_thought = false;
};

class Answers {
 public:
  explicit Answers(bool sampled)
      : tokenizer_(*Tokenizer::Load(absl::StrCat(kAbacusDir, "/tokenizer.json"))),
        format_(*ChatFormat::Create(*tokenizer_)) {
    thinking_ = {.begin = *tokenizer_->AddedTokenId("<think>"), .end = *tokenizer_->AddedTokenId("</think>")};
    std::vector<Request> questions = TestRequests({.count = 40, .sampled = sampled, .logprobs = true});
    std::erase_if(questions, [](const Request& request) { return request.prompt_ids.size() < 8; });
    for (Request& question : questions) question.max_tokens = 60;
    const RunRecord run = RunRequests(LoadModelOnce(kAbacusDir), kPlain, questions);
    for (size_t i = 0; i < questions.size() && answers_.size() < 2 * kAnswers; ++i) {
      const std::vector<int32_t>& ids = run.requests[i].token_ids;
      const size_t thought = std::find(ids.begin(), ids.end(), thinking_.end) - ids.begin();
      if (thought < 4 || thought + 6 > ids.size()) continue;
      for (const size_t cut : {thought / 2, thought + 2 + i % 3}) Add(questions[i], ids, cut, thought);
    }
    CHECK_EQ(answers_.size(), 2 * kAnswers);
  }

  const std::vector<Continued>& answers() const { return answers_; }

 private:
  // Renders the answer's first `cut` tokens behind the question. The question is the last message of its
  // prompt, so that what is in front of the answer is the prompt itself.
  void Add(const Request& question, const std::vector<int32_t>& ids, size_t cut, size_t thought) {
    const auto text = [&](size_t begin, size_t end) {
      return tokenizer_->Decode(std::vector(ids.begin() + begin, ids.begin() + end), false);
    };
    const bool in_thought = cut <= thought;
    ChatMessage begun{.role = "assistant", .thinking = text(0, std::min(cut, thought))};
    if (!in_thought) begun.content = text(thought + 1, cut);
    const auto rendered = format_.Render({{{.role = "user", .content = "?"}, begun}}, {.continues = true});
    const auto opening = format_.Render({{{.role = "user", .content = "?"}}});
    CHECK(rendered.ok() && opening.ok()) << rendered.status().ToString();
    CHECK(std::equal(opening->begin(), opening->end(), rendered->begin()));
    Continued& added = answers_.emplace_back();
    added.request = question;
    added.request.prompt_ids.insert(added.request.prompt_ids.end(), rendered->begin() + opening->size(),
                                    rendered->end());
    added.request.max_tokens = 60;
    if (answers_.size() % 3 == 0) added.request.stop_ids.clear();  // goes on behind the model's own end
    added.request.sampling.seed = question.sampling.seed * 2 + (in_thought ? 0 : 1);
    added.request.thinking = thinking_;
    added.request.prompt_phase = in_thought ? Phase::kThinking : Phase::kAnswer;
    added.in_thought = in_thought;
    std::vector<int32_t> whole = question.prompt_ids;
    whole.insert(whole.end(), ids.begin(), ids.begin() + cut);
    if (whole == added.request.prompt_ids) added.rest.assign(ids.begin() + cut, ids.end());
  }

  const std::unique_ptr<Tokenizer> tokenizer_;
  const ChatFormat format_;
  ThinkingIds thinking_;
  std::vector<Continued> answers_;
};

const std::vector<Continued>& AnswersOf(bool sampled) {
  static const auto* const greedy = new Answers(false);
  static const auto* const drawn = new Answers(true);
  return (sampled ? drawn : greedy)->answers();
}

// A request for every answer, in order; then one more for every thought, with a budget that it may spend.
std::vector<Request> RequestsOf(bool sampled) {
  std::vector<Request> requests, limited;
  for (const Continued& answer : AnswersOf(sampled)) {
    requests.push_back(answer.request);
    if (!answer.in_thought) continue;
    const int count = static_cast<int>(limited.size());
    Request& request = limited.emplace_back(answer.request);
    request.sampling.seed += 1'000'000;  // the harness tells requests by it
    request.thinking_budget = {.limit = count % 5, .end_ids = {request.thinking.end}};
    if (count % 2 == 1) request.thinking_budget.end_ids.insert(request.thinking_budget.end_ids.begin(), 7);
  }
  requests.insert(requests.end(), limited.begin(), limited.end());
  return requests;
}

class ContinuedTokens : public SameTokensFixture {
 protected:
  ContinuedTokens() : SameTokensFixture(LoadModelOnce(kAbacusDir), RequestsOf) {}
};

TEST_F(ContinuedTokens, AreTheSameUnderEverySetting) {
  std::vector<Setting> settings = {
      {.draft_len = 0},
      {.draft_len = 1, .overlap = false},
      {.draft_len = 3, .max_batch_size = 1},
      {.draft_len = 7, .graphs = false, .max_num_tokens = 16},
      {.draft_len = 3, .reuse = false, .small_pool = true},
      {.draft_len = 3, .losses = {4, 11, 30}},
      {.draft_len = 3, .draft_caps = true, .draft_len_changes = {3, 0, 7, 1, 1, 2}},
      {.max_open = 2, .draft_len = 7, .policy = DraftPolicyKind::kAdaptive},
      {.draft_len = 3, .vanilla = true},
      {.draft_len = 3, .kv_format = DType::kF8E4M3},
      {.ranks = 2, .draft_len = 3},
      {.attention_tp = 2, .draft_len = 3, .losses = {9}}};
  std::vector<SameTokensCase> cases;
  for (const bool sampled : {false, true}) {
    for (const Setting& setting : settings) {
      cases.push_back(
          {.name = absl::StrCat("setting ", cases.size()), .setting = setting, .sampled = sampled});
    }
  }
  ExpectTheSame(cases);
}

TEST_F(ContinuedTokens, SpendTheBudgetOfTheirThought) {
  const std::vector<Request> requests = RequestsOf(false);
  const RunRecord run = RunRequests(model_, {.draft_len = 3}, requests);
  int spent = 0;
  for (size_t i = AnswersOf(false).size(); i < requests.size(); ++i) {
    const auto& [limit, end_ids] = requests[i].thinking_budget;
    const std::vector<int32_t>& tokens = run.requests[i].token_ids;
    const size_t end = std::find(tokens.begin(), tokens.end(), end_ids.back()) - tokens.begin();
    EXPECT_LE(end, limit + end_ids.size() - 1) << "request " << i;
    spent += end == limit + end_ids.size() - 1 ? 1 : 0;
  }
  EXPECT_GE(spent, 3);
}

// Rows of the prompt have another form than rows that were decoded, so single answers may part.
TEST_F(ContinuedTokens, GoOnAsTheAnswerThatWasCut) {
  const RunRecord run = RunRequests(model_, {.draft_len = 3}, RequestsOf(false));
  int compared = 0, equal = 0, thoughts = 0;
  for (size_t i = 0; i < AnswersOf(false).size(); ++i) {
    const Continued& answer = AnswersOf(false)[i];
    if (answer.rest.empty()) continue;
    const std::vector<int32_t>& tokens = run.requests[i].token_ids;
    const size_t length = std::min(tokens.size(), answer.rest.size());
    ++compared;
    thoughts += answer.in_thought ? 1 : 0;
    equal += std::equal(tokens.begin(), tokens.begin() + length, answer.rest.begin()) ? 1 : 0;
  }
  EXPECT_GE(compared, kAnswers);
  EXPECT_GE(thoughts, 3);
  EXPECT_GE(equal, compared * 3 / 4) << "of " << compared;
}

}  // namespace
}  // namespace foredraft
