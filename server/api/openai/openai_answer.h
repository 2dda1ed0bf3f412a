#pragma once

// Answers of OpenAI's API as JSON: whole, as events of a stream, and errors. No sockets.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/api/generation_call.h"
#include "server/api/model_card.h"
#include "server/api/openai/openai_request.h"
#include "server/http/http_message.h"
#include "server/output/response_sink.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// What a request calls its fields, for errors; the daemon's texts have those of foredraft.v1.
struct FieldNames {
  OpenAiKind kind;
  const char* max_tokens;
  // NOLINTNEXTLINE(google-explicit-constructor): most errors come before a request has more than its kind.
  FieldNames(OpenAiKind kind, const char* max_tokens = "max_tokens") : kind(kind), max_tokens(max_tokens) {}
};

// What all parts of an answer repeat.
struct AnswerShape {
  OpenAiKind kind = OpenAiKind::kChat;
  std::string id;
  std::string model;
  std::string fingerprint;  // the numerics class
  int64_t created = 0;      // seconds since the epoch
  bool has_logprobs = false;
  bool return_token_ids = false;
  bool include_usage = false;
  bool continuous_usage = false;  // in every chunk, with include_usage
  bool tokens_as_ids = false;     // token texts of logprobs are "token_id:7"
  bool hides_thinking = false;
  const Tokenizer* tokenizer = nullptr;  // outlives the answer
  const char* max_tokens_field = "max_tokens";

  FieldNames names() const { return {kind, max_tokens_field}; }
};

// What a choice's text so far leaves for the next part of its stream. Owner: one choice; not thread-safe.
struct ChoiceProgress {
  int64_t characters = 0;  // of the tokens so far
  bool has_begun = false;  // the role is sent
};

// A choice that has ended.
struct ChoiceEnd {
  OutputDelta whole;  // of a stream: only its stats
  OutputEnd end;
  ResponseLabels labels;
};

// An event for `delta`, which ends choice `index` if `end` is given; empty where it would say nothing.
std::string ChunkEvent(const AnswerShape& shape, int index, const OutputDelta& delta, const OutputEnd* end,
                       const ResponseLabels& labels, ChoiceProgress& progress);
// The event with the usage, which has no choices.
std::string UsageEvent(const AnswerShape& shape, const std::vector<RequestStats>& stats,
                       int choices_per_prompt);
inline constexpr char kDoneEvent[] = "data: [DONE]\n\n";
std::string ErrorEvent(const AnswerShape& shape, const absl::Status& status);

// The body of a whole answer.
std::string WholeBody(const AnswerShape& shape, const std::vector<ChoiceEnd>& choices,
                      int choices_per_prompt);
std::string ModelsBody(const ModelCard& card, int64_t created);
std::string ModelBody(const ModelCard& card, int64_t created);

// {"error": ...} with the status that OpenAI's clients know.
HttpAnswer ErrorAnswer(const FieldNames& names, const absl::Status& status);
HttpAnswer ErrorAnswer(int http_status, const std::string& text);
// The request's field that an error text names, for OpenAI's `param`: "sampling.top_p" is "top_p" here. Empty
// where the text names none.
std::string ParamOf(const FieldNames& names, std::string_view text);
// The text with the request's own names of fields. What is quoted is the client's and stays.
std::string ClientText(const FieldNames& names, std::string_view text);

}  // namespace foredraft
