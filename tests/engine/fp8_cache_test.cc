// What an FP8 cache costs in answers: abacus' held-out questions, with either dtype of the KV cache.

#include <gtest/gtest.h>

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

TEST(Fp8Cache, AbacusKeepsItsAnswers) {
  const Questions questions = ReadQuestions();
  const LoadedModel& model = LoadModelOnce(kAbacusDir);
  std::map<DType, RunRecord> runs;
  for (const DType dtype : {DType::kBF16, DType::kF8E4M3}) {
    const RunRecord& run = runs[dtype] =
        RunRequests(model, {.draft_len = 3, .kv_dtype = dtype}, questions.requests);
    const size_t count = questions.answers.size();
    int right = 0, same = 0, steps = 0, accepted = 0;
    for (size_t i = 0; i < count; ++i) {
      right += AnswerOf(questions, run.requests[i].token_ids) == questions.answers[i];
      same += run.requests[i].token_ids == runs[DType::kBF16].requests[i].token_ids;
      steps += run.requests[i].steps;
      accepted += run.requests[i].accepted_tokens;
    }
    std::cout << absl::StreamFormat("%s: %d of %d right, %d replies as with BF16, acceptance length %.3f\n",
                                    DTypeName(dtype), right, count, same, 1 + double(accepted) / steps);
    EXPECT_GE(right, 0.95 * static_cast<double>(count)) << "what abacus' card promises";
  }
}

}  // namespace
}  // namespace foredraft
