#pragma once

// Requests of OpenAI's API: JSON into what RequestValidator checks. A field that would change the answer and
// that the daemon does not have is refused by name; docs/clients.md lists the fields that change nothing.

#include <cstdint>
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
  // All choices share these fields, and there is only one copy: a body may have 128 prompts. Without input.
  ClientRequest common;
  std::vector<PromptInput> prompts;
  int choices_per_prompt = 1;                   // n
  const char* max_tokens_field = "max_tokens";  // as the client calls it
  bool stream = false;
  bool include_usage = false;
  bool return_token_ids = false;  // with their origins

  int choice_count() const { return static_cast<int>(prompts.size()) * choices_per_prompt; }
  const PromptInput& prompt_of(int index) const { return prompts[index / choices_per_prompt]; }
  // Choice `index` as a request of its own, once. Choice i of a prompt has the request's seed plus i, so that
  // the first is what n = 1 gives. May be called for several choices at the same time.
  ClientRequest TakeChoice(int index);
};

// INVALID_ARGUMENT names the field, its value and what is allowed. A prompt of more than `max_prompt_ids`
// token ids is refused before the rest of it is read.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(OpenAiKind kind, std::string_view body,
                                                int64_t max_prompt_ids = kMaxRequestValues);

}  // namespace foredraft
