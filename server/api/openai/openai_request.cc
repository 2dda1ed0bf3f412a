#include "server/api/openai/openai_request.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/api/conversation/message_gatherer.h"
#include "server/api/fields/constraint_fields.h"
#include "server/api/fields/field_reader.h"
#include "server/api/fields/sampling_fields.h"
#include "server/api/fields/thinking_fields.h"
#include "server/api/fields/tool_fields.h"
#include "server/api/openai/chat_messages.h"

namespace foredraft {
namespace {

using nlohmann::json;

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Reads whether the answer continues the last message, an assistant's.
void ReadContinuation(FieldReader& fields, ClientRequest& request) {
  const auto* const messages = std::get_if<ChatMessages>(&request.input);
  const bool asked = fields.Bool("continue_final_message", false);
  const bool opens = fields.Bool("add_generation_prompt", !asked);
  if (asked && messages != nullptr && (messages->empty() || !CanBeContinued(messages->back()))) {
    fields.Refuse(
        "continue_final_message",
        "true, allowed where the last message is an assistant's with a text and without tool_calls");
  }
  if (opens == asked) {
    fields.Refuse("add_generation_prompt",
                  absl::StrCat(opens ? "true" : "false", ", allowed ", opens ? "false" : "true",
                               asked ? " with" : " without", " continue_final_message: true"));
  }
  request.choices.continues |= asked;
}

void ReadChat(FieldReader& fields, std::string_view body, OpenAiRequest& chat) {
  ClientRequest& request = chat.common;
  absl::StatusOr<ReadMessagesResult> read = ReadMessages(fields.Find("messages"), fields.context());
  fields.Keep(read.status());
  request.tools = ReadTools(fields, body, chat.custom_tools);
  chat.hides_thinking = ReadThinking(fields, request);
  if (read.ok()) {
    request.choices.continues = read->continues;
    request.input = std::move(read->messages);
  }
  ReadContinuation(fields, request);
  const bool logprobs = fields.Bool("logprobs", false);
  const std::optional<int32_t> top = fields.Int("top_logprobs");
  if (logprobs) request.logprobs = top.value_or(0);
  if (!logprobs && top.value_or(0) != 0) fields.Refuse("top_logprobs", "given without logprobs: true");
}

// Text, ids, or a list of either.
absl::StatusOr<std::vector<PromptInput>> ReadPrompts(const json* prompt) {
  if (prompt == nullptr) return Refuse("prompt: absent, required");
  std::vector<PromptInput> prompts;
  if (prompt->is_string()) {
    prompts.emplace_back(prompt->get<std::string>());
    return prompts;
  }
  if (!prompt->is_array() || prompt->empty()) {
    return Refuse("prompt: ", ShowJson(*prompt), ", allowed text, token ids, or a list of either");
  }
  if (prompt->front().is_number()) {
    std::vector<int32_t> ids;
    RETURN_IF_ERROR(ReadIds(*prompt, "prompt", ids));
    prompts.emplace_back(std::move(ids));
    return prompts;
  }
  if (prompt->size() > kMaxChoices) {
    return Refuse("prompt: ", prompt->size(), " prompts, allowed at most ", kMaxChoices);
  }
  for (const json& one : *prompt) {
    const std::string name = absl::StrCat("prompt[", prompts.size(), "]");
    std::vector<int32_t> ids;
    if (one.is_string()) {
      prompts.emplace_back(one.get<std::string>());
    } else if (one.is_array()) {
      RETURN_IF_ERROR(ReadIds(one, name, ids));
      prompts.emplace_back(std::move(ids));
    } else {
      return Refuse(name, ": ", ShowJson(one), ", allowed text or token ids");
    }
  }
  return prompts;
}

void ReadStreaming(FieldReader& fields, OpenAiRequest& request) {
  request.stream = fields.Bool("stream", false);
  const json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return fields.Refuse("stream_options", absl::StrCat(ShowJson(*options), ", allowed an object"));
  }
  FieldReader read(*options, "stream_options.", fields.context());
  request.include_usage = read.Bool("include_usage", false);
  request.continuous_usage = read.Bool("continuous_usage_stats", false) && request.include_usage;
  read.End();
  fields.Keep(read.status());
  if (!request.stream) fields.Drop("stream_options");
}

absl::Status CountChoices(FieldReader& fields, OpenAiRequest& request) {
  const int n = fields.Int("n").value_or(1);
  if (n < 1 || n > kMaxChoices) fields.Refuse("n", absl::StrCat(n, ", allowed 1..", kMaxChoices));
  if (const json* best_of = fields.Find("best_of"); best_of != nullptr && *best_of != 1 && *best_of != n) {
    fields.Refuse("best_of", absl::StrCat(ShowJson(*best_of), ", allowed 1 or n"));
  }
  RETURN_IF_ERROR(fields.status());
  request.choices_per_prompt = n;
  if (request.choice_count() <= kMaxChoices) return absl::OkStatus();
  return Refuse("n: ", n, " for ", request.prompts.size(), " prompts, allowed ", kMaxChoices,
                " choices in all");
}

// Reads what /v1/completions has besides the common fields.
void ReadCompletion(FieldReader& fields, OpenAiRequest& request) {
  ClientRequest& common = request.common;
  common.logprobs = fields.Int("logprobs");
  common.add_bos = fields.Bool("add_special_tokens", true);
  common.truncate_prompt_tokens = fields.Int("truncate_prompt_tokens");
  absl::StatusOr<std::vector<PromptInput>> read = ReadPrompts(fields.Find("prompt"));
  fields.Keep(read.status());
  if (read.ok()) request.prompts = *std::move(read);
  (void)fields.Bool("parallel_tool_calls", true);
}

// Reads the field that only /tokenize has, and refuses a prompt that is not one text.
void ReadTokenize(FieldReader& fields, OpenAiRequest& request) {
  request.return_token_strs = fields.Bool("return_token_strs", false);
  if (request.kind == OpenAiKind::kChat || request.prompts.empty()) return;
  if (request.prompts.size() == 1 && std::holds_alternative<std::string>(request.prompts.front())) return;
  fields.Refuse("prompt", "not one text, allowed one, or messages");
}

absl::StatusOr<OpenAiRequest> ReadObject(OpenAiKind kind, const json& object, std::string_view body,
                                         FieldContext& context, bool tokenizes) {
  FieldReader fields(object, "", context);
  OpenAiRequest request;
  request.kind = kind;
  request.model = fields.String("model").value_or("");
  ClientRequest& common = request.common;
  common.wire = context.wire;
  common.lowers_max_tokens = true;
  if (kind == OpenAiKind::kCompletion) common.max_tokens = kDefaultCompletionTokens;
  request.max_tokens_field = ReadMaxTokens(fields, common);
  ReadCommonFields(fields, common);
  request.return_token_ids = fields.Bool("return_token_ids", false);
  request.tokens_as_ids = fields.Bool("return_tokens_as_token_ids", false);
  ReadStreaming(fields, request);
  common.constraint = ReadConstraint(fields, body);
  if (kind == OpenAiKind::kChat) {
    ReadChat(fields, body, request);
    request.prompts.push_back(std::exchange(common.input, {}));
  } else {
    ReadCompletion(fields, request);
  }
  if (tokenizes) ReadTokenize(fields, request);
  const absl::Status counted = CountChoices(fields, request);
  fields.End();
  RETURN_IF_ERROR(counted);
  RETURN_IF_ERROR(fields.status());
  return request;
}

}  // namespace

absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(OpenAiKind kind, std::string_view body,
                                                const ReadOptions& options) {
  absl::StatusOr<OpenAiRequest> request;
  RETURN_IF_ERROR(ReadBody(WireOf(kind), body, options, [&](const json& object, FieldContext& context) {
    request = ReadObject(kind, object, body, context, /*tokenizes=*/false);
    if (request.ok()) request->common.notes = context.notes;
    return request.status();
  }));
  return request;
}

absl::StatusOr<OpenAiRequest> ReadTokenizeRequest(std::string_view body, const ReadOptions& options) {
  absl::StatusOr<OpenAiRequest> request;
  RETURN_IF_ERROR(ReadBody(NotedWire::kOther, body, options, [&](const json& object, FieldContext& context) {
    const OpenAiKind kind = object.contains("messages") ? OpenAiKind::kChat : OpenAiKind::kCompletion;
    context.wire = WireOf(kind);  // whose fields these are
    request = ReadObject(kind, object, body, context, /*tokenizes=*/true);
    if (request.ok()) request->common.notes = context.notes;
    return request.status();
  }));
  return request;
}

}  // namespace foredraft
