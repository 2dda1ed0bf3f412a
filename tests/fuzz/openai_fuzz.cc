// Requests of OpenAI's API: the first byte chooses the endpoint, what becomes of unknown fields and how the
// answer is cut, the rest is the body. Refused with one line that names a field, or good for scheduler and
// device; then an answer, whole and as a stream, whose texts are those of the tokens.

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/check.h"
#include "server/api/openai/openai_answer.h"
#include "server/api/openai/openai_request.h"
#include "tests/fuzz/served_abacus.h"

namespace foredraft {
namespace {

using nlohmann::json;

constexpr int kMostPlayedChoices = 3;

// What a client joins from the events of a stream.
struct Joined {
  std::string thinking;
  std::string text;
  std::vector<std::string> arguments;  // of calls
  int64_t tokens = 0;

  void Add(OpenAiKind kind, const std::string& event) {
    if (event.empty()) return;
    CHECK(event.starts_with("data: ") && event.ends_with("\n\n")) << event;
    const json choice = json::parse(event.substr(6))["choices"][0];
    if (kind == OpenAiKind::kChat) {
      thinking += choice["delta"].value("reasoning_content", "");
      text += choice["delta"].value("content", "");
      for (const json& call : choice["delta"].value("tool_calls", json::array())) {
        const size_t index = call["index"];
        if (index == arguments.size()) arguments.emplace_back();
        arguments.at(index) += call["function"]["arguments"].get<std::string>();
      }
    } else {
      text += choice["text"].get<std::string>();
    }
    if (choice.contains("token_ids")) tokens += static_cast<int64_t>(choice["token_ids"].size());
  }
};

void CheckAnswer(const AnswerShape& shape, const ServedAbacus::Answer& answer, const ResponseLabels& labels) {
  ChoiceProgress progress;
  Joined joined;
  for (size_t i = 0; i < answer.deltas.size(); ++i) {
    const bool is_last = i + 1 == answer.deltas.size();
    joined.Add(shape.kind,
               ChunkEvent(shape, 0, answer.deltas[i], is_last ? &answer.end : nullptr, labels, progress));
  }
  const json body = json::parse(WholeBody(shape, {{answer.whole, answer.end, labels}}, 1));
  const json& choice = body["choices"][0];
  CHECK_EQ(body["usage"]["completion_tokens"].get<size_t>(), answer.whole.token_ids.size());
  if (shape.return_token_ids) {
    CHECK_EQ(joined.tokens, static_cast<int64_t>(answer.whole.token_ids.size()));
  }
  if (shape.kind == OpenAiKind::kCompletion) {
    CHECK(choice["text"] == answer.whole.text && joined.text == answer.whole.text) << joined.text;
    return;
  }
  const json& message = choice["message"];
  const json& content = message["content"];
  CHECK((content.is_null() ? std::string() : content.get<std::string>()) == joined.text) << joined.text;
  const json calls = message.value("tool_calls", json::array());
  CHECK_EQ(calls.size(), joined.arguments.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    CHECK(calls[i]["function"]["arguments"] == joined.arguments[i]) << joined.arguments[i];
  }
  const json& thinking = message["reasoning_content"];
  CHECK((thinking.is_null() ? std::string() : thinking.get<std::string>()) == joined.thinking)
      << joined.thinking;
}

// A header of HTTP, and no longer than the names that are kept.
void CheckNotes(const FieldNotes& notes) {
  const std::string header = notes.Header();
  CHECK_LE(header.size(), FieldNotes::kMostNames * (FieldNotes::kMostNameBytes + 2) + 8) << header;
  CHECK(std::all_of(header.begin(), header.end(), [](char c) { return c >= ' ' && c <= '~'; })) << header;
}

// What both ways of reading take is the same request, and so is one with a further unknown field.
void CheckOtherWay(OpenAiKind kind, const std::string& body, bool refuses, const OpenAiRequest& read) {
  const auto same = [&read](const OpenAiRequest& other) {
    const ClientRequest &a = read.common, &b = other.common;
    CHECK(read.prompts.size() == other.prompts.size() && read.choices_per_prompt == other.choices_per_prompt);
    CHECK(a.max_tokens == b.max_tokens && a.stop == b.stop && a.tools.choice == b.tools.choice);
    CHECK(a.tools.tools.size() == b.tools.tools.size() && a.choices.thinking == b.choices.thinking);
    CHECK(a.choices.reasoning_effort == b.choices.reasoning_effort && a.sampling.seed == b.sampling.seed);
  };
  if (refuses) {
    const auto ignoring = ReadOpenAiRequest(kind, body);
    CHECK(ignoring.ok()) << ignoring.status();
    CHECK_EQ(ignoring->common.notes.count(FieldNotes::Kind::kUnknown), 0);
    return same(*ignoring);
  }
  const std::string unknown =
      body.substr(0, body.find('{') + 1) + "\"\\u0001 unknown\": [{}], " + body.substr(body.find('{') + 1);
  const auto with_unknown = ReadOpenAiRequest(kind, unknown);
  CHECK(with_unknown.ok()) << with_unknown.status();
  CHECK_EQ(with_unknown->common.notes.count(), read.common.notes.count() + 1);
  same(*with_unknown);
}

void FuzzBody(OpenAiKind kind, bool refuses_unknown, const std::string& body) {
  FieldNotes notes;
  auto request = ReadOpenAiRequest(kind, body, {.refuses_unknown = refuses_unknown, .notes = &notes});
  CheckNotes(notes);
  if (!request.ok()) return ServedAbacus::CheckRefusal(request.status());
  CheckOtherWay(kind, body, refuses_unknown, *request);
  CHECK(request->choice_count() >= 1 && request->choice_count() <= kMaxChoices) << request->choice_count();
  ServedAbacus& abacus = ServedAbacus::Get();
  for (int i = 0; i < std::min(request->choice_count(), kMostPlayedChoices); ++i) {
    auto checked = abacus.validator().Check(request->TakeChoice(i));
    if (!checked.ok()) {
      (void)ParamOf(WireOf(kind), {checked.status().message().data(), checked.status().message().size()});
      ServedAbacus::CheckRefusal(checked.status());
      continue;
    }
    const ResponseLabels labels{.seed = checked->request.sampling.seed};
    const AnswerShape shape{.kind = kind,
                            .id = "x",
                            .model = "abacus",
                            .has_logprobs = checked->request.logprob_count >= 0,
                            .return_token_ids = request->return_token_ids,
                            .include_usage = request->include_usage,
                            .tokenizer = &abacus.tokenizer()};
    CheckAnswer(shape, abacus.Play(*std::move(checked)), labels);
  }
}

}  // namespace
}  // namespace foredraft

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto kind = data[0] % 2 == 0 ? foredraft::OpenAiKind::kChat : foredraft::OpenAiKind::kCompletion;
  const bool refuses_unknown = data[0] / 2 % 2 == 1;
  foredraft::FuzzBody(kind, refuses_unknown, std::string(reinterpret_cast<const char*>(data) + 1, size - 1));
  return 0;
}
