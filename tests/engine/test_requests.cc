#include "tests/engine/test_requests.h"

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "server/text/chat_format.h"
#include "server/text/tokenizer.h"

namespace foredraft {
namespace {

constexpr char kSystem[] =
    "You are a careful clerk. You write short notes, you check every digit twice, and you never guess.";

std::vector<std::string> ReadQuestions(const std::string& name) {
  std::ifstream file(absl::StrCat(kAbacusDir, "/", name));
  std::vector<std::string> questions;
  for (std::string line; std::getline(file, line);) {
    questions.push_back(nlohmann::json::parse(line).at("question").get<std::string>());
  }
  CHECK(!questions.empty()) << kAbacusDir << "/" << name;
  return questions;
}

}  // namespace

std::vector<Request> TestRequests(const RequestShape& shape) {
  auto tokenizer = Tokenizer::Load(absl::StrCat(kAbacusDir, "/tokenizer.json"));
  CHECK(tokenizer.ok()) << tokenizer.status().ToString();
  auto chat = ChatFormat::Create(**tokenizer);
  CHECK(chat.ok()) << chat.status().ToString();
  const std::vector<std::string> questions = ReadQuestions(shape.questions);
  std::vector<Request> requests;
  for (int i = 0; i < shape.count; ++i) {
    std::vector<ChatMessage> messages;
    if (i % 3 == 0) messages.push_back({.role = "system", .content = kSystem});
    messages.push_back({.role = "user", .content = questions[(i * 37) % questions.size()]});
    auto ids = chat->Render(messages);
    CHECK(ids.ok()) << ids.status().ToString();
    if (i == 7) ids->resize(1);  // the shortest prompt there is
    Request& request = requests.emplace_back();
    request.prompt_ids = *std::move(ids);
    request.max_tokens = i == 4 ? 1 : 8 + (i * 29) % 57;
    request.stop_ids = {(*tokenizer)->eos_id()};
    request.sampling.seed = 1000 + i;
    request.logprob_count = shape.logprobs ? i % 4 - 1 : -1;
    if (!shape.sampled) continue;
    request.sampling.temperature = 0.8f;
    request.sampling.top_p = 0.95f;
    if (i % 4 == 0) {
      request.sampling.repetition_penalty = 1.1f;
      request.sampling.presence_penalty = 0.2f;
      request.sampling.frequency_penalty = 0.1f;
    }
    if (i % 4 == 2) {
      // The digits are likely, so the first one is chosen less often and the second one more.
      const auto one = (*tokenizer)->Encode("1");
      const auto nine = (*tokenizer)->Encode("9");
      CHECK(one.ok() && nine.ok() && one->back() < nine->back());
      request.sampling.logit_bias = {{one->back(), -3}, {nine->back(), 2.5f}};
      request.sampling.min_tokens = request.max_tokens / 2;
    }
  }
  return requests;
}

}  // namespace foredraft
