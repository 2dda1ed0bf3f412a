// What an FP8 cache and FP8 products cost in answers: abacus' held-out questions, with each format of the KV
// cache, and the same for abacus-v4, which knows fewer of the answers.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/check.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"
#include "tests/engine/engine_harness.h"
#include "tests/engine/test_requests.h"

namespace foredraft {
namespace {

constexpr int kOfEachKind = 15;

struct Questions {
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> answers;
  std::vector<Request> requests;  // greedy, without a limit of their own
};

Questions ReadQuestions() {
  Questions questions;
  auto tokenizer = Tokenizer::Load(absl::StrCat(kAbacusDir, "/tokenizer.json"));
  CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  questions.tokenizer = *std::move(tokenizer);
  auto chat = ChatFormat::Create(*questions.tokenizer);
  CHECK(chat.ok()) << chat.status().ToString();
  std::map<std::string, int> seen;
  std::ifstream file(absl::StrCat(kAbacusDir, "/heldout.jsonl"));
  for (std::string line; std::getline(file, line);) {
    const auto question = nlohmann::json::parse(line);
    if (++seen[question.at("kind")] > kOfEachKind) continue;
    const std::vector<ChatMessage> messages = {{.role = "user", .content = question.at("question")}};
    auto ids = chat->Render(messages);
    CHECK(ids.ok()) << ids.status().ToString();
    Request& request = questions.requests.emplace_back();
    request.max_tokens = kMaxSeqLen - static_cast<int>(ids->size());
    request.prompt_ids = *std::move(ids);
    request.stop_ids = {questions.tokenizer->eos_id()};
    request.sampling.seed = questions.requests.size();
    questions.answers.push_back(question.at("answer"));
  }
  return questions;
}

// What follows the thinking section.
std::string AnswerOf(const Questions& questions, std::vector<int32_t> ids) {
  if (!ids.empty() && ids.back() == questions.tokenizer->eos_id()) ids.pop_back();
  const std::string text = questions.tokenizer->Decode(ids, /*skip_special=*/false);
  constexpr std::string_view kEnd = "</think>";
  const size_t end = text.rfind(kEnd);
  return std::string(
      absl::StripAsciiWhitespace(end == std::string::npos ? text : text.substr(end + kEnd.size())));
}

struct Answers {
  int count = 0;
  int right = 0;
  int same = 0;  // replies with the tokens of a BF16 cache
};

// The answers with each format, which it prints.
std::map<KvFormat, Answers> AnswersOf(const std::string& dir, const std::vector<KvFormat>& formats) {
  const Questions questions = ReadQuestions();
  const LoadedModel& model = LoadModelOnce(dir);
  std::map<KvFormat, RunRecord> runs;
  std::map<KvFormat, Answers> answers;
  for (const KvFormat format : formats) {
    const RunRecord& run = runs[format] =
        RunRequests(model, {.draft_len = 3, .kv_format = format}, questions.requests);
    Answers& of_format = answers[format];
    of_format.count = static_cast<int>(questions.answers.size());
    int steps = 0, accepted = 0;
    for (size_t i = 0; i < questions.answers.size(); ++i) {
      of_format.right += AnswerOf(questions, run.requests[i].token_ids) == questions.answers[i];
      of_format.same += run.requests[i].token_ids == runs[DType::kBF16].requests[i].token_ids;
      steps += run.requests[i].steps;
      accepted += run.requests[i].accepted_tokens;
    }
    std::cout << absl::StreamFormat("%s: %d of %d right, %d replies as with BF16, acceptance length %.3f\n",
                                    KvFormatName(format), of_format.right, of_format.count, of_format.same,
                                    1 + double(accepted) / steps);
  }
  return answers;
}

TEST(Fp8Cache, AbacusKeepsItsAnswers) {
  for (const auto& [format, answers] :
       AnswersOf(kAbacusDir, {std::begin(kKvFormats), std::end(kKvFormats)})) {
    EXPECT_GE(answers.right, 0.95 * answers.count) << KvFormatName(format) << ": what abacus' card promises";
  }
}

// Replies that differ may each be right or wrong, in either direction: three deviations of as many coins.
TEST(Fp8Cache, AbacusV4KnowsAsMuch) {
  std::map<KvFormat, Answers> answers =
      AnswersOf("deploy/models/abacus-v4/mtp", {DType::kBF16, DType::kF8E4M3});
  const Answers &fp8 = answers[DType::kF8E4M3], &bf16 = answers[DType::kBF16];
  EXPECT_GT(bf16.right, bf16.count / 3);
  EXPECT_GE(fp8.right, bf16.right - 3 * std::sqrt(fp8.count - fp8.same));
}

}  // namespace
}  // namespace foredraft
