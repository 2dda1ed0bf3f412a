#pragma once

// Reads requests of OpenAI's API from JSON, for RequestValidator to check. Every field has a class
// (server/api/fields/field_classes.h, docs/client-fields.md): a field that would change the answer and is not
// supported is refused by name, one without effect is noted.

#include <set>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "server/api/fields/request_body.h"
#include "server/api/http/wire_request.h"

namespace foredraft {

enum class OpenAiKind { kChat, kCompletion };

inline constexpr int kDefaultCompletionTokens = 16;  // OpenAI's max_tokens for /v1/completions

struct OpenAiRequest : WireRequest {
  OpenAiKind kind = OpenAiKind::kChat;
  const char* max_tokens_field = "max_tokens";  // as the client calls it
  bool include_usage = false;
  bool continuous_usage = false;       // with include_usage: in every chunk
  bool return_token_ids = false;       // with their origins
  bool tokens_as_ids = false;          // token texts of logprobs are "token_id:7"
  bool return_token_strs = false;      // of /tokenize
  bool hides_thinking = false;         // thinking is left out of the answer
  std::set<std::string> custom_tools;  // names of tools whose calls have a text instead of arguments
};

inline NotedWire WireOf(OpenAiKind kind) {
  return kind == OpenAiKind::kChat ? NotedWire::kChat : NotedWire::kCompletions;
}

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(OpenAiKind kind, std::string_view body,
                                                const ReadOptions& options = {});
// The body of /tokenize: a chat where it has messages, else a completion with one text.
absl::StatusOr<OpenAiRequest> ReadTokenizeRequest(std::string_view body, const ReadOptions& options);

}  // namespace foredraft
