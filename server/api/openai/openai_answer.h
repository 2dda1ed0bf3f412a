#pragma once

// Answers of OpenAI's API as JSON: whole, and as events of a stream. No sockets.

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "server/api/fields/json_string_reader.h"
#include "server/api/http/answer_format.h"
#include "server/api/http/client_error.h"
#include "server/api/openai/openai_request.h"
#include "server/text/tokenizer.h"

namespace foredraft {

// The values that all parts of an answer repeat.
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
  std::set<std::string> custom_tools = {};  // OpenAiRequest::custom_tools
  const Tokenizer* tokenizer = nullptr;     // outlives the answer
  const char* max_tokens_field = "max_tokens";

  FieldNames names() const { return {WireOf(kind), max_tokens_field}; }
};

// What one part of a choice's stream must know of the parts before it. Owner: one choice; not thread-safe.
struct ChoiceProgress {
  int64_t characters = 0;                              // of the tokens so far
  bool has_begun = false;                              // the role is sent
  std::map<int, JsonStringReader> custom_inputs = {};  // of calls of custom tools, by index
};

// An event for `delta`, which ends choice `index` if `end` is given; empty if there is nothing to say.
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

}  // namespace foredraft
