#pragma once

// Requests of OpenAI's API: JSON into what RequestValidator checks. Every field has a class
// (server/api/fields/field_classes.h, docs/client-fields.md): one that would change the answer and is not
// there is refused by name, one without effect is noted.

#include <cstdint>
#include <set>
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
  bool continuous_usage = false;  // with include_usage: in every chunk
  bool return_token_ids = false;  // with their origins
  bool tokens_as_ids = false;     // token texts of logprobs are "token_id:7"
  bool hides_thinking = false;    // it is left out of the answer

  int choice_count() const { return static_cast<int>(prompts.size()) * choices_per_prompt; }
  const PromptInput& prompt_of(int index) const { return prompts[index / choices_per_prompt]; }
  // Choice `index` as a request of its own, once. Choice i of a prompt has the request's seed plus i, so that
  // the first is what n = 1 gives. May be called for several choices at the same time.
  ClientRequest TakeChoice(int index);
};

struct ReadOptions {
  // A prompt of more token ids is refused before the rest of it is read.
  int64_t max_prompt_ids = kMaxRequestValues;
  bool refuses_unknown = false;  // server.unknown_fields
  // Where set: what has no effect, also of a request that is refused; the names that readers ask for.
  FieldNotes* notes = nullptr;
  std::set<std::string>* asked = nullptr;
};

inline NotedWire WireOf(OpenAiKind kind) {
  return kind == OpenAiKind::kChat ? NotedWire::kChat : NotedWire::kCompletions;
}

// INVALID_ARGUMENT names the field, its value and what is allowed.
absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(OpenAiKind kind, std::string_view body,
                                                const ReadOptions& options = {});

}  // namespace foredraft
