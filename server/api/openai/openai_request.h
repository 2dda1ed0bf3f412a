#pragma once

// Requests of OpenAI's API: JSON into what RequestValidator checks. A field that would change the answer and
// that the daemon does not have is refused by name; docs/clients.md lists the fields that change nothing.

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/api/client_request.h"

namespace foredraft {

enum class OpenAiKind { kChat, kCompletion };

inline constexpr int kMaxChoices = 128;              // of a request: prompts times n
inline constexpr int kMaxRequestValues = 1 << 20;    // numbers, strings, lists and objects in a body
inline constexpr int kDefaultCompletionTokens = 16;  // OpenAI's max_tokens for /v1/completions

struct OpenAiRequest {
  OpenAiKind kind = OpenAiKind::kChat;
  std::string model;  // empty: not named
  // One per prompt. Choice i of a prompt has the prompt's seed plus i, so that the first is what n = 1 gives.
  std::vector<ClientRequest> prompts;
  int choices_per_prompt = 1;  // n
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;  // with their origins

  int choice_count() const { return static_cast<int>(prompts.size()) * choices_per_prompt; }
  // As its own request.
  ClientRequest Choice(int index) const;
};

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(OpenAiKind kind, std::string_view body);

}  // namespace foredraft
