#pragma once

// The fields of a request about the answer's thinking: the spellings of OpenAI's, Anthropic's and other
// servers' clients, read by one reader.

#include "server/api/fields/field_reader.h"
#include "server/text/chat_message.h"

namespace foredraft {

struct ThinkingFields {
  ChatChoices choices;
  std::optional<int32_t> budget;  // ClientRequest::thinking_budget, by the names of other servers
  bool hides_thinking = false;    // it is computed and counted, and left out of the answer
};

// Where fields contradict each other, off wins over on, and the request's own reasoning_effort over others.
ThinkingFields ReadThinking(FieldReader& fields);

}  // namespace foredraft
