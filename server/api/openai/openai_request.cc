#include "server/api/openai/openai_request.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "config/json_text.h"
#include "server/api/fields/constraint_fields.h"
#include "server/api/fields/field_reader.h"
#include "server/api/fields/tool_fields.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

using nlohmann::json;

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// The parser's texts end with what it read last, which may be all of the body.
absl::Status Shortened(const absl::Status& status) {
  constexpr size_t kMostBytes = 300;
  if (status.message().size() <= kMostBytes) return status;
  const std::string text(status.message().substr(0, kMostBytes));
  return absl::Status(status.code(), absl::StrCat(text.substr(0, FirstInvalidUtf8(text)), "..."));
}

// Fields whose meaning foredraft does not have; each may still be sent with the value that changes nothing.
void RefuseUnsupported(FieldReader& fields) {
  fields.AllowOnly("functions", json::array(), "allowed unset: tools is their newer name");
  fields.AllowOnly("function_call", "none", "allowed unset: tool_choice is its newer name");
  fields.AllowOnly("echo", false, "allowed false");
  fields.AllowOnly("suffix", "", "allowed unset");
  fields.AllowOnly("best_of", 1, "allowed 1");
  fields.AllowOnly("use_beam_search", false, "allowed false");
  fields.AllowOnly("prompt_logprobs", nullptr, "allowed unset");
  fields.AllowOnly("include_stop_str_in_output", false, "allowed false");
  fields.AllowOnly("skip_special_tokens", true, "allowed true");
  fields.AllowOnly("add_generation_prompt", true, "allowed true");
  fields.AllowOnly("continue_final_message", false, "allowed false");
  fields.AllowOnly("modalities", json::array({"text"}), "allowed [\"text\"]");
  fields.AllowOnly("audio", nullptr, "allowed unset");
  fields.AllowOnly("web_search_options", nullptr, "allowed unset");
}

// Fields about the caller, the account or the place of computing: other servers of this API ignore them, too.
void IgnoreHarmless(FieldReader& fields) {
  fields.Ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
                 "prompt_cache_retention", "prediction", "spaces_between_special_tokens"});
}

// A message's text: a string, or parts of type text, which become lines.
absl::Status ReadContent(const json& content, const std::string& field, std::string& text) {
  if (content.is_string()) {
    text = content.get<std::string>();
    return absl::OkStatus();
  }
  if (!content.is_array())
    return Refuse(field, ": ", ShowJson(content), ", allowed a string or a list of parts");
  for (size_t i = 0; i < content.size(); ++i) {
    const json& part = content[i];
    const std::string name = absl::StrCat(field, "[", i, "]");
    if (!part.is_object()) return Refuse(name, ": ", ShowJson(part), ", allowed an object");
    FieldReader fields(part, name + ".");
    const std::string type = fields.String("type").value_or("");
    const std::optional<std::string> piece = fields.String("text");
    if (type != "text") fields.Refuse("type", absl::StrCat(ShowJson(type), ", allowed text"));
    if (!piece.has_value()) fields.Refuse("text", "absent, required");
    fields.RefuseUnknown();
    RETURN_IF_ERROR(fields.status());
    absl::StrAppend(&text, i == 0 ? "" : "\n", *piece);
  }
  return absl::OkStatus();
}

absl::StatusOr<ChatMessage> ReadMessage(const json& message, const std::string& name) {
  if (!message.is_object()) return Refuse(name, ": ", ShowJson(message), ", allowed an object");
  FieldReader fields(message, name + ".");
  ChatMessage read;
  read.role = fields.String("role").value_or("");
  if (read.role == "developer") read.role = "system";  // OpenAI's newer name
  if (const json* calls = fields.Find("tool_calls"); calls != nullptr) {
    ASSIGN_OR_RETURN(read.tool_calls, ReadToolCalls(*calls, name + ".tool_calls"));
  }
  read.tool_call_id = fields.String("tool_call_id").value_or("");
  if (const json* content = fields.Find("content"); content != nullptr) {
    fields.Keep(ReadContent(*content, name + ".content", read.content));
  } else if (read.tool_calls.empty()) {
    fields.Refuse("content", "absent, required");
  }
  // vLLM's newer name of reasoning_content is reasoning.
  const std::optional<std::string> reasoning = fields.String("reasoning");
  read.thinking = fields.String("reasoning_content").value_or(reasoning.value_or(""));
  if (read.role != "assistant") read.thinking.clear();
  fields.AllowOnly("function_call", json::object(), "allowed unset: tool_calls is its newer name");
  // Names, refusals and sounds are not rendered.
  fields.Ignore({"name", "refusal", "annotations", "audio"});
  fields.RefuseUnknown();
  RETURN_IF_ERROR(fields.status());
  return read;
}

absl::StatusOr<ChatMessages> ReadMessages(const json* messages) {
  if (messages == nullptr || !messages->is_array()) {
    return Refuse("messages: ", messages == nullptr ? "absent" : ShowJson(*messages),
                  ", allowed a list of messages");
  }
  ChatMessages read;
  for (const json& message : *messages) {
    ASSIGN_OR_RETURN(ChatMessage next, ReadMessage(message, absl::StrCat("messages[", read.size(), "]")));
    read.push_back(std::move(next));
  }
  return read;
}

void ReadChat(FieldReader& fields, std::string_view body, ClientRequest& request) {
  absl::StatusOr<ChatMessages> messages = ReadMessages(fields.Find("messages"));
  fields.Keep(messages.status());
  if (messages.ok()) request.input = *std::move(messages);
  request.tools = ReadTools(fields, body);
  if (const json* kwargs = fields.Find("chat_template_kwargs"); kwargs != nullptr && kwargs->is_object()) {
    FieldReader choices(*kwargs, "chat_template_kwargs.");
    for (const char* name : {"enable_thinking", "thinking"}) {  // GLM's name and DeepSeek's
      if (choices.Find(name) != nullptr) request.choices.thinking = choices.Bool(name, false);
    }
    request.choices.reasoning_effort = choices.String("reasoning_effort").value_or("");
    choices.RefuseUnknown();
    fields.Keep(choices.status());
  } else if (kwargs != nullptr) {
    fields.Refuse("chat_template_kwargs", absl::StrCat(ShowJson(*kwargs), ", allowed an object"));
  }
  // OpenAI's place, over the template's.
  if (const auto effort = fields.String("reasoning_effort")) request.choices.reasoning_effort = *effort;
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

// {"token id": bias, ...}
std::vector<TokenBias> ReadLogitBias(FieldReader& fields) {
  std::vector<TokenBias> biases;
  const json* object = fields.Find("logit_bias");
  if (object == nullptr) return biases;
  if (!object->is_object()) {
    fields.Refuse("logit_bias",
                  absl::StrCat(ShowJson(*object), ", allowed an object of token ids and biases"));
    return biases;
  }
  for (const auto& [key, value] : object->items()) {
    int32_t token_id = 0;
    if (!absl::SimpleAtoi(key, &token_id) || !value.is_number()) {
      fields.Refuse("logit_bias", absl::StrCat(ShowJson(key), ": ", ShowJson(value),
                                               ", allowed a token id in quotes and a number"));
      break;
    }
    biases.push_back({token_id, value.get<float>()});
  }
  return biases;
}

ClientSampling ReadSampling(FieldReader& fields) {
  ClientSampling sampling;
  sampling.temperature = fields.Float("temperature");
  sampling.top_p = fields.Float("top_p");
  sampling.top_k = fields.Int("top_k");
  sampling.min_p = fields.Float("min_p");
  sampling.repetition_penalty = fields.Float("repetition_penalty");
  sampling.presence_penalty = fields.Float("presence_penalty");
  sampling.frequency_penalty = fields.Float("frequency_penalty");
  sampling.seed = fields.Seed("seed");
  sampling.min_tokens = fields.Int("min_tokens").value_or(0);
  sampling.logit_bias = ReadLogitBias(fields);
  return sampling;
}

// What both kinds of request have, but for the prompt.
void ReadCommon(FieldReader& fields, ClientRequest& request) {
  request.sampling = ReadSampling(fields);
  request.max_tokens = fields.Int("max_tokens");
  request.stop = fields.Strings("stop");
  request.stop_token_ids = fields.Ids("stop_token_ids");
  request.ignore_eos = fields.Bool("ignore_eos", false);
  request.max_draft_tokens = fields.Int("max_draft_tokens");
  request.strict_acceptance = fields.Bool("strict_acceptance", false);
  request.priority = fields.Int("priority").value_or(0);
  request.timeout_s = fields.Double("timeout_s");
}

void ReadStreaming(FieldReader& fields, OpenAiRequest& request) {
  request.stream = fields.Bool("stream", false);
  const json* options = fields.Find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return fields.Refuse("stream_options", absl::StrCat(ShowJson(*options), ", allowed an object"));
  }
  FieldReader read(*options, "stream_options.");
  request.include_usage = read.Bool("include_usage", false);
  read.Ignore({"include_obfuscation"});
  read.RefuseUnknown();
  fields.Keep(read.status());
  if (!request.stream) fields.Refuse("stream_options", "given without stream: true");
}

absl::Status CountChoices(FieldReader& fields, OpenAiRequest& request) {
  const int n = fields.Int("n").value_or(1);
  if (n < 1 || n > kMaxChoices) fields.Refuse("n", absl::StrCat(n, ", allowed 1..", kMaxChoices));
  RETURN_IF_ERROR(fields.status());
  request.choices_per_prompt = n;
  if (request.choice_count() <= kMaxChoices) return absl::OkStatus();
  return Refuse("n: ", n, " for ", request.prompts.size(), " prompts, allowed ", kMaxChoices,
                " choices in all");
}

}  // namespace

ClientRequest OpenAiRequest::TakeChoice(int index) {
  ClientRequest choice = common;
  PromptInput& prompt = prompts[index / choices_per_prompt];
  if (choices_per_prompt == 1) {
    choice.input = std::move(prompt);  // no other choice has it
  } else {
    choice.input = prompt;
  }
  if (choice.sampling.seed.has_value()) *choice.sampling.seed += index % choices_per_prompt;
  return choice;
}

absl::StatusOr<OpenAiRequest> ReadOpenAiRequest(OpenAiKind kind, std::string_view body,
                                                int64_t max_prompt_ids) {
  // The parser would skip it, and another reader of the same body might not.
  if (body.starts_with("\xEF\xBB\xBF"))
    return Refuse("body: begins with a byte order mark, allowed JSON alone");
  absl::StatusOr<json> parsed = ParseJson(body, "body",
                                          {.max_values = kMaxRequestValues,
                                           .list_key = "prompt",
                                           .max_list = std::max<int64_t>(max_prompt_ids, kMaxChoices)});
  if (!parsed.ok()) return Shortened(parsed.status());
  const JsonRelease<json> release(*parsed);
  const json& object = *parsed;
  if (!object.is_object()) return Refuse("body: ", ShowJson(object), ", allowed an object");
  FieldReader fields(object, "");
  OpenAiRequest request;
  request.kind = kind;
  request.model = fields.String("model").value_or("");
  ClientRequest& common = request.common;
  ReadCommon(fields, common);
  request.return_token_ids = fields.Bool("return_token_ids", false);
  ReadStreaming(fields, request);
  common.constraint = ReadConstraint(fields, body);
  if (kind == OpenAiKind::kChat) {
    ReadChat(fields, body, common);
    if (const std::optional<int32_t> most = fields.Int("max_completion_tokens")) {
      common.max_tokens = most;
      request.max_tokens_field = "max_completion_tokens";
    }
    request.prompts.push_back(std::exchange(common.input, {}));
  } else {
    if (!common.max_tokens.has_value()) common.max_tokens = kDefaultCompletionTokens;
    common.logprobs = fields.Int("logprobs");
    absl::StatusOr<std::vector<PromptInput>> read = ReadPrompts(fields.Find("prompt"));
    fields.Keep(read.status());
    if (read.ok()) request.prompts = *std::move(read);
    fields.AllowOnly("tools", json::array(), "allowed unset: /v1/chat/completions takes tools");
    fields.AllowOnly("tool_choice", "none", "allowed unset: /v1/chat/completions takes tools");
    fields.Bool("parallel_tool_calls", true);
  }
  RefuseUnsupported(fields);
  IgnoreHarmless(fields);
  RETURN_IF_ERROR(CountChoices(fields, request));
  fields.RefuseUnknown();
  RETURN_IF_ERROR(fields.status());
  return request;
}

}  // namespace foredraft
