#include "server/api/request_validator.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fnv.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "kernels/slot_arrays.h"
#include "server/api/constraint_check.h"
#include "server/api/prompt_size.h"
#include "server/api/tool_check.h"

namespace foredraft {
namespace {

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A logit is divided by the temperature; if it is positive and its token was seen before, also by the
// repetition penalty. With smaller numbers logits of 1e19 (1e32) would become infinite, and all infinite
// logits equal. At these bounds the results no longer change: the largest logit wins.
constexpr float kLowestTemperature = 1e-20f;  // below: greedy
constexpr float kLowestPenalty = 1e-6f;       // below: as this one

// A closed range, or one open at the bottom. NaN is in no range.
struct Range {
  double low;
  double high;
  bool open_low = false;
};

absl::Status CheckRange(const char* field, double value, Range range) {
  if ((range.open_low ? value > range.low : value >= range.low) && value <= range.high) {
    return absl::OkStatus();
  }
  return Refuse(field, ": ", absl::StrFormat("%g", value), ", allowed ", range.open_low ? "above " : "",
                absl::StrFormat("%g", range.low), range.open_low ? " to " : "..",
                absl::StrFormat("%g", range.high));
}

// The name of the field that has the prompt.
const char* InputField(const PromptInput& input) {
  constexpr const char* kFields[] = {"input", "text", "token_ids", "chat"};
  static_assert(std::size(kFields) == std::variant_size_v<PromptInput>);
  return kFields[input.index()];
}

// Bytes of text in the prompt.
size_t PromptBytes(const PromptInput& input, const ChatTools& tools) {
  if (const auto* text = std::get_if<std::string>(&input)) return text->size();
  size_t bytes = 0;
  if (const auto* messages = std::get_if<ChatMessages>(&input)) {
    for (const ChatMessage& message : *messages) bytes += TextBytes(message);
  }
  return bytes + TextBytes(tools);
}

// Refuses fields of chat that came with another input.
absl::Status CheckNoChat(const PromptInput& input, const ChatChoices& choices, const ChatTools& tools) {
  const char* const allowed = ", allowed with chat";
  if (choices.thinking.has_value()) return Refuse("thinking: given with ", InputField(input), allowed);
  if (!choices.reasoning_effort.empty()) {
    return Refuse("chat.reasoning_effort: given with ", InputField(input), allowed);
  }
  if (!tools.tools.empty()) return Refuse("chat.tools: given with ", InputField(input), allowed);
  return absl::OkStatus();
}

bool HasControlBytes(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; });
}

uint64_t DrawSeed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

std::string CallIdPrefix() { return absl::StrFormat("call_%016x", DrawSeed()); }

Phase PromptPhase(const ThinkingIds& thinking, const std::vector<int32_t>& prompt_ids) {
  Phase phase = Phase::kAnswer;
  for (int32_t id : prompt_ids) phase = thinking.PhaseAfter(phase, id);
  return phase;
}

// Fills in what the spec repeats of the request; takes the client's stops.
void FillSpec(const Request& request, ClientRequest& client, OutputSpec& spec) {
  spec.prompt_tokens = static_cast<int>(request.prompt_ids.size());
  spec.stop = std::move(client.stop);
  spec.keeps_stop = client.keeps_stop;
  spec.min_tokens = request.sampling.min_tokens;
  spec.stop_token_ids = std::move(client.stop_token_ids);
  spec.prompt_phase = request.prompt_phase;
  spec.thinking = request.thinking;
  if (!request.thinking_budget.end_ids.empty()) spec.thought_limit = request.thinking_budget.limit;
}

}  // namespace

absl::StatusOr<CheckedRequest> RequestValidator::Check(ClientRequest client, FieldNotes* kept_notes) const {
  FieldNotes own_notes;
  FieldNotes& notes = kept_notes == nullptr ? own_notes : *kept_notes;
  RETURN_IF_ERROR(CheckLengths(client));
  RETURN_IF_ERROR(CheckPromptLength(client.input, client.tools));
  if (HasControlBytes(client.request_id)) {
    return Refuse("request_id: has control characters, allowed printable characters only");
  }
  if (const auto* messages = std::get_if<ChatMessages>(&client.input)) {
    RETURN_IF_ERROR(ApplyToolChanges(*messages, client.tools));
  }
  RETURN_IF_ERROR(CheckConstraint(client, constraints_));
  CheckedRequest checked;
  Request& request = checked.request;
  RETURN_IF_ERROR(FillChoices(client, request));

  const char* const input_field = InputField(client.input);
  const bool is_chat = std::holds_alternative<ChatMessages>(client.input);
  ASSIGN_OR_RETURN(request.prompt_ids, PromptIds(client, notes));
  const int prompt_len = static_cast<int>(request.prompt_ids.size());
  ASSIGN_OR_RETURN(request.max_tokens, MaxTokens(client, input_field, prompt_len, notes));
  RETURN_IF_ERROR(CheckRange("sampling.min_tokens", client.sampling.min_tokens,
                             {0, static_cast<double>(request.max_tokens)}));
  request.sampling.min_tokens = client.sampling.min_tokens;
  request.thinking = thinking_.load();
  request.prompt_phase = PromptPhase(request.thinking, request.prompt_ids);
  ASSIGN_OR_RETURN(request.thinking_budget, Budget(client, request.thinking));
  ASSIGN_OR_RETURN(request.constraint,
                   MakeConstraint(client, request, chat_format_, tokenizer_, constraints_));

  FillSpec(request, client, checked.spec);
  checked.spec.ignored_fields = notes.count();
  if (is_chat && !client.raw_text) {
    AnswerOptions& answer = checked.spec.answer.emplace();
    answer.syntax = &chat_format_->answers();
    answer.begins_in_thinking = request.prompt_phase == Phase::kThinking;
    answer.parallel_calls = client.tools.parallel;
    if (client.tools.has_effect()) answer.tools = std::move(client.tools.tools);
    std::erase_if(answer.tools, [](const ChatTool& tool) { return tool.removed; });
    answer.line_ends_behind_thought = request.constraint.line_end_ids.empty() ? 0 : kMostLineEnds;
    answer.id_prefix = CallIdPrefix();
  }
  return checked;
}

// Reads how tokens are chosen and where the output ends, which does not depend on the prompt.
absl::Status RequestValidator::FillChoices(ClientRequest& client, Request& request) const {
  ASSIGN_OR_RETURN(request.sampling, Sampling(client.sampling));
  ASSIGN_OR_RETURN(request.sampling.logit_bias, LogitBias(std::move(client.sampling.logit_bias)));
  if (client.logprobs.has_value()) {
    RETURN_IF_ERROR(CheckRange("logprobs", *client.logprobs, {0, kMaxLogprobs}));
    request.logprob_count = *client.logprobs;
  }
  request.draft_cap = client.max_draft_tokens.value_or(kMaxDraftLen);
  RETURN_IF_ERROR(CheckRange("max_draft_tokens", request.draft_cap, {0, kMaxDraftLen}));
  if (client.timeout_s.has_value()) {
    RETURN_IF_ERROR(CheckRange("timeout_s", *client.timeout_s, {0, 1e6, /*open_low=*/true}));
  }
  RETURN_IF_ERROR(CheckIds("stop_token_ids", client.stop_token_ids));
  if (!client.ignore_eos) request.stop_ids = EndIds(client.input);
  request.stop_ids.insert(request.stop_ids.end(), client.stop_token_ids.begin(), client.stop_token_ids.end());
  request.priority = client.priority;
  if (std::abs(int64_t{request.priority}) > kMaxPriority) {
    return Refuse("priority: ", Grouped(request.priority), ", allowed ", -kMaxPriority, "..", kMaxPriority);
  }
  request.strict_acceptance = client.strict_acceptance;
  if (!client.cache_salt.empty()) request.reuse_scope = Fnv1a(client.cache_salt);
  return absl::OkStatus();
}

absl::StatusOr<ThinkingBudget> RequestValidator::Budget(const ClientRequest& client,
                                                        const ThinkingIds& thinking) const {
  constexpr const char* kField = "thinking_token_budget: ";
  if (!client.thinking_budget.has_value() || *client.thinking_budget == -1) return ThinkingBudget{};
  const int32_t budget = *client.thinking_budget;
  if (budget < -1) return Refuse(kField, Grouped(budget), ", allowed -1 (no limit) and 0 or more");
  if (thinking.end < 0) return Refuse(kField, "given, and this model does not think; allowed -1 (no limit)");
  if (forced_.load()) {
    return Refuse(kField,
                  "given with forced acceptance, whose tokens are not the model's; allowed -1 (no limit)");
  }
  if (client.constraint.has_value() && client.constraint->from_first_token) {
    return Refuse(kField, "given with from_first_token, where no thought is free; allowed -1 (no limit)");
  }
  if (budget >= limits_.size.max_seq_len) return ThinkingBudget{};  // no output is that long
  // The wind-down is left out if the budget has no room for it.
  const auto wind_down = static_cast<int32_t>(limits_.wind_down_ids.size());
  ThinkingBudget read{.limit = budget};
  if (budget >= wind_down) read = {.limit = budget - wind_down, .end_ids = limits_.wind_down_ids};
  read.end_ids.push_back(thinking.end);
  return read;
}

absl::Status RequestValidator::CheckLengths(const ClientRequest& client) const {
  if (client.request_id.size() > kMaxRequestIdBytes) {
    return Refuse("request_id: ", Grouped(client.request_id.size()), " bytes, allowed at most ",
                  kMaxRequestIdBytes);
  }
  if (client.stop.size() > kMaxStopStrings) {
    return Refuse("stop: ", Grouped(client.stop.size()), " strings, allowed at most ", kMaxStopStrings);
  }
  for (size_t i = 0; i < client.stop.size(); ++i) {
    const size_t bytes = client.stop[i].size();
    if (bytes == 0) return Refuse("stop[", i, "]: empty, allowed 1..", kMaxStopBytes, " bytes");
    if (bytes > kMaxStopBytes) {
      return Refuse("stop[", i, "]: ", Grouped(bytes), " bytes, allowed 1..", kMaxStopBytes);
    }
  }
  const size_t eos_count = client.ignore_eos ? 0 : EndIds(client.input).size();
  if (client.stop_token_ids.size() + eos_count > kMaxStopIds) {
    return Refuse("stop_token_ids: ", Grouped(client.stop_token_ids.size()), " ids, allowed at most ",
                  kMaxStopIds - eos_count);
  }
  if (client.sampling.logit_bias.size() > kMaxLogitBiases) {
    return Refuse("sampling.logit_bias: ", Grouped(client.sampling.logit_bias.size()),
                  " tokens, allowed at most ", kMaxLogitBiases);
  }
  return CheckConstraintLength(client, constraints_);
}

absl::Status RequestValidator::CheckPromptLength(const PromptInput& input, const ChatTools& tools) const {
  if (const auto* ids = std::get_if<std::vector<int32_t>>(&input)) {
    RETURN_IF_ERROR(CheckPromptTokens("token_ids", static_cast<int64_t>(ids->size())));
  }
  // A message has at least one token.
  const auto most_messages = static_cast<size_t>(std::max(kMaxChatMessages, limits_.size.max_seq_len));
  if (const auto* messages = std::get_if<ChatMessages>(&input);
      messages != nullptr && messages->size() > most_messages) {
    return Refuse("chat.messages: ", Grouped(messages->size()), " messages, allowed at most ",
                  Grouped(most_messages));
  }
  // A longer text has too many tokens in any case, so it is refused without being tokenized.
  const size_t bytes = PromptBytes(input, tools);
  const size_t most = static_cast<size_t>(limits_.size.max_seq_len) * limits_.longest_token_bytes;
  if (bytes > most) {
    const auto longest = static_cast<size_t>(limits_.longest_token_bytes);
    return WithPromptSize(Refuse(InputField(input), ": ", Grouped(bytes), " bytes, at most ", Grouped(most),
                                 " can fit max_seq_len ", Grouped(limits_.size.max_seq_len)),
                          {.tokens = static_cast<int64_t>((bytes + longest - 1) / longest),
                           .most = limits_.size.max_len() - 1});
  }
  return absl::OkStatus();
}

std::vector<int32_t> RequestValidator::EndIds(const PromptInput& input) const {
  std::vector<int32_t> ids = limits_.eos_ids;
  if (!std::holds_alternative<ChatMessages>(input) || chat_format_ == nullptr) return ids;
  for (const int32_t id : chat_format_->stop_ids()) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return ids;
}

// Takes the input's ids out of `client`.
absl::StatusOr<std::vector<int32_t>> RequestValidator::PromptIds(ClientRequest& client,
                                                                 FieldNotes& notes) const {
  if (const auto* messages = std::get_if<ChatMessages>(&client.input)) {
    return ChatIds(*messages, client.choices, client.tools, notes);
  }
  RETURN_IF_ERROR(CheckNoChat(client.input, client.choices, client.tools));
  if (auto* ids = std::get_if<std::vector<int32_t>>(&client.input)) {
    RETURN_IF_ERROR(CheckIds("token_ids", *ids));
    return Truncated(client, std::move(*ids));
  }
  if (const auto* text = std::get_if<std::string>(&client.input)) {
    if (text->empty()) return Refuse("text: empty, allowed at least 1 character");
    ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                     EncodeText(*text, {.parse_special = client.parse_special, .add_bos = client.add_bos}));
    return Truncated(client, std::move(ids));
  }
  return Refuse("input: empty, allowed one of text, token_ids, chat");
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::Truncated(const ClientRequest& client,
                                                                 std::vector<int32_t> ids) const {
  if (!client.truncate_prompt_tokens.has_value()) return ids;
  int64_t most = *client.truncate_prompt_tokens;
  if (most < -1 || most == 0) {
    return Refuse("truncate_prompt_tokens: ", most, ", allowed -1 and at least 1");
  }
  if (most == -1) most = std::max<int64_t>(limits_.size.max_len() - client.max_tokens.value_or(1), 1);
  if (static_cast<int64_t>(ids.size()) > most) ids.erase(ids.begin(), ids.end() - most);
  return ids;
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::EncodeText(const std::string& text,
                                                                  const EncodeOptions& options) const {
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer_.Encode(text, options);
  if (!ids.ok()) return absl::Status(ids.status().code(), absl::StrCat("text: ", ids.status().message()));
  return ids;
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::ChatIds(const ChatMessages& messages,
                                                               const ChatChoices& choices,
                                                               const ChatTools& tools,
                                                               FieldNotes& notes) const {
  if (chat_format_ == nullptr) return Refuse("chat: ", no_chat_, ", allowed text, token_ids");
  RETURN_IF_ERROR(CheckTools(tools));
  return chat_format_->Render(messages, choices, tools, &notes);
}

absl::Status RequestValidator::CheckIds(const char* field, std::span<const int32_t> ids) const {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= limits_.vocab_size) {
      return Refuse(field, "[", i, "]: ", ids[i], ", allowed 0..", limits_.vocab_size - 1,
                    " (the vocabulary)");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> RequestValidator::Sampling(const ClientSampling& client) const {
  const SamplingParams& defaults = limits_.default_sampling;
  SamplingParams sampling;
  sampling.temperature = client.temperature.value_or(defaults.temperature);
  sampling.top_p = client.top_p.value_or(defaults.top_p);
  sampling.top_k = client.top_k.value_or(defaults.top_k);
  sampling.min_p = client.min_p.value_or(defaults.min_p);
  sampling.repetition_penalty = client.repetition_penalty.value_or(defaults.repetition_penalty);
  sampling.presence_penalty = client.presence_penalty.value_or(defaults.presence_penalty);
  sampling.frequency_penalty = client.frequency_penalty.value_or(defaults.frequency_penalty);
  sampling.seed = client.seed.has_value() ? *client.seed : DrawSeed();
  RETURN_IF_ERROR(CheckRange("sampling.temperature", sampling.temperature, {0, 100}));
  RETURN_IF_ERROR(CheckRange("sampling.top_p", sampling.top_p, {0, 1, /*open_low=*/true}));
  RETURN_IF_ERROR(CheckRange("sampling.top_k", sampling.top_k, {-1, std::numeric_limits<int32_t>::max()}));
  RETURN_IF_ERROR(CheckRange("sampling.min_p", sampling.min_p, {0, 1}));
  RETURN_IF_ERROR(
      CheckRange("sampling.repetition_penalty", sampling.repetition_penalty, {0, 100, /*open_low=*/true}));
  RETURN_IF_ERROR(CheckRange("sampling.presence_penalty", sampling.presence_penalty, {-2, 2}));
  RETURN_IF_ERROR(CheckRange("sampling.frequency_penalty", sampling.frequency_penalty, {-2, 2}));
  sampling.top_k = std::clamp(sampling.top_k, 0, limits_.vocab_size);
  if (sampling.temperature < kLowestTemperature) sampling.temperature = 0;
  sampling.repetition_penalty = std::max(sampling.repetition_penalty, kLowestPenalty);
  return sampling;
}

absl::StatusOr<std::vector<TokenBias>> RequestValidator::LogitBias(std::vector<TokenBias> client) const {
  std::sort(client.begin(), client.end(),
            [](const TokenBias& a, const TokenBias& b) { return a.token_id < b.token_id; });
  for (size_t i = 0; i < client.size(); ++i) {
    const TokenBias& bias = client[i];
    const bool is_padded = limits_.token_count > 0 && limits_.token_count < limits_.vocab_size;
    const int count = is_padded ? limits_.token_count : limits_.vocab_size;
    if (bias.token_id < 0 || bias.token_id >= count) {
      return Refuse("sampling.logit_bias: token ", bias.token_id, ", allowed 0..", count - 1,
                    is_padded ? " (the tokenizer)" : " (the vocabulary)");
    }
    if (std::binary_search(limits_.missing_tokens.begin(), limits_.missing_tokens.end(), bias.token_id)) {
      return Refuse("sampling.logit_bias: token ", bias.token_id, ", allowed ids that the tokenizer has");
    }
    const std::string field = absl::StrCat("sampling.logit_bias[", bias.token_id, "]");
    if (i > 0 && client[i - 1].token_id == bias.token_id) return Refuse(field, ": given twice");
    RETURN_IF_ERROR(CheckRange(field.c_str(), bias.bias, {-100, 100}));
  }
  return client;
}

absl::Status RequestValidator::CheckPromptTokens(const char* input_field, int64_t prompt_len) const {
  absl::Status status = limits_.size.CheckPrompt(input_field, prompt_len);
  if (status.ok() || prompt_len == 0) return status;
  return WithPromptSize(std::move(status), {.tokens = prompt_len, .most = limits_.size.max_len() - 1});
}

absl::StatusOr<int64_t> RequestValidator::MaxTokens(const ClientRequest& client, const char* input_field,
                                                    int64_t prompt_len, FieldNotes& notes) const {
  if (!client.max_tokens.has_value()) {
    RETURN_IF_ERROR(CheckPromptTokens(input_field, prompt_len));
    return limits_.size.max_len() - prompt_len;
  }
  const int64_t asked = *client.max_tokens;
  const int64_t room = limits_.size.max_len() - prompt_len;
  if (client.lowers_max_tokens && room > 0 && asked > room) {
    notes.Dropped("max_tokens");
    return room;
  }
  if (asked >= 1) RETURN_IF_ERROR(CheckPromptTokens(input_field, prompt_len));
  RETURN_IF_ERROR(limits_.size.Check(input_field, prompt_len, asked));
  return asked;
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::Tokenize(const PromptInput& input,
                                                                const EncodeOptions& options,
                                                                const ChatChoices& choices,
                                                                const ChatTools& tools) const {
  if (const size_t bytes = PromptBytes(input, tools); bytes > kMaxTokenizeBytes) {
    return Refuse(InputField(input), ": ", Grouped(bytes), " bytes, allowed at most ",
                  Grouped(kMaxTokenizeBytes));
  }
  if (const auto* messages = std::get_if<ChatMessages>(&input)) {
    FieldNotes notes;  // nobody is told the notes of a count
    return ChatIds(*messages, choices, tools, notes);
  }
  RETURN_IF_ERROR(CheckNoChat(input, choices, tools));
  if (const auto* text = std::get_if<std::string>(&input)) return EncodeText(*text, options);
  return Refuse("input: empty, allowed one of text, chat");
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::PromptTokens(const PromptInput& input,
                                                                    const ClientRequest& client) const {
  ChatTools tools = client.tools;
  if (const auto* messages = std::get_if<ChatMessages>(&input)) {
    RETURN_IF_ERROR(ApplyToolChanges(*messages, tools));
  }
  ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                   Tokenize(input, {.parse_special = client.parse_special, .add_bos = client.add_bos},
                            client.choices, tools));
  return Truncated(client, std::move(ids));
}

absl::StatusOr<std::string> RequestValidator::Detokenize(std::span<const int32_t> token_ids) const {
  if (token_ids.size() > static_cast<size_t>(limits_.max_detokenize_ids)) {
    return Refuse("token_ids: ", Grouped(static_cast<int64_t>(token_ids.size())), " ids, allowed at most ",
                  Grouped(limits_.max_detokenize_ids), " (server.max_detokenize_ids)");
  }
  RETURN_IF_ERROR(CheckIds("token_ids", token_ids));
  return tokenizer_.Decode(token_ids, /*skip_special=*/false);
}

}  // namespace foredraft
