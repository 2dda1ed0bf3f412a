#include "server/api/request_validator.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/grouped_digits.h"
#include "base/status_macros.h"
#include "kernels/slot_arrays.h"

namespace foredraft {
namespace {

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// A closed range, or one open at the bottom; NaN is in none.
struct Range {
  double low;
  double high;
  bool open_low = false;
};

absl::Status CheckRange(const char* field, double value, Range range) {
  if ((range.open_low ? value > range.low : value >= range.low) && value <= range.high)
    return absl::OkStatus();
  return Refuse(field, ": ", absl::StrFormat("%g", value), ", allowed ", range.open_low ? "above " : "",
                absl::StrFormat("%g", range.low), range.open_low ? " to " : "..",
                absl::StrFormat("%g", range.high));
}

// The field that the prompt came in.
const char* InputField(const v1::GenerateRequest& wire) {
  return wire.has_text() ? "text" : wire.has_chat() ? "chat" : "token_ids";
}

bool HasControlBytes(const std::string& text) {
  return std::any_of(text.begin(), text.end(),
                     [](unsigned char byte) { return byte < 0x20 || byte == 0x7f; });
}

uint64_t DrawSeed() {
  thread_local std::mt19937_64 generator{std::random_device{}()};
  return generator();
}

Phase PromptPhase(const ThinkingIds& thinking, const std::vector<int32_t>& prompt_ids) {
  Phase phase = Phase::kAnswer;
  for (int32_t id : prompt_ids) phase = thinking.PhaseAfter(phase, id);
  return phase;
}

}  // namespace

absl::StatusOr<CheckedRequest> RequestValidator::Check(const v1::GenerateRequest& wire) const {
  RETURN_IF_ERROR(CheckLengths(wire));
  if (HasControlBytes(wire.request_id())) return Refuse("request_id: has control characters, allowed none");
  CheckedRequest checked;
  Request& request = checked.request;
  ASSIGN_OR_RETURN(request.sampling, Sampling(wire.sampling()));
  if (wire.has_logprobs()) {
    RETURN_IF_ERROR(CheckRange("logprobs", wire.logprobs(), {0, kMaxTopLogprobs}));
    request.logprob_count = wire.logprobs();
  }
  request.draft_cap = kMaxDraftLen;
  if (wire.has_max_draft_tokens()) {
    RETURN_IF_ERROR(CheckRange("max_draft_tokens", wire.max_draft_tokens(), {0, kMaxDraftLen}));
    request.draft_cap = wire.max_draft_tokens();
  }
  if (wire.has_timeout_s()) {
    RETURN_IF_ERROR(CheckRange("timeout_s", wire.timeout_s(), {0, 1e6, /*open_low=*/true}));
    checked.timeout_s = wire.timeout_s();
  }
  RETURN_IF_ERROR(CheckIds("stop_token_ids", wire.stop_token_ids()));
  if (!wire.ignore_eos()) request.stop_ids = limits_.eos_ids;
  request.stop_ids.insert(request.stop_ids.end(), wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  request.priority = wire.priority();
  request.strict_acceptance = wire.strict_acceptance();

  ASSIGN_OR_RETURN(request.prompt_ids, PromptIds(wire));
  ASSIGN_OR_RETURN(request.max_tokens, MaxTokens(wire, request.prompt_ids.size()));
  request.thinking = thinking_.load();
  request.prompt_phase = PromptPhase(request.thinking, request.prompt_ids);

  checked.spec.prompt_tokens = static_cast<int>(request.prompt_ids.size());
  checked.spec.stop.assign(wire.stop().begin(), wire.stop().end());
  checked.spec.stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  checked.spec.prompt_phase = request.prompt_phase;
  checked.spec.thinking = request.thinking;
  return checked;
}

absl::Status RequestValidator::CheckLengths(const v1::GenerateRequest& wire) const {
  if (wire.request_id().size() > kMaxRequestIdBytes) {
    return Refuse("request_id: ", Grouped(wire.request_id().size()), " bytes, allowed at most ",
                  kMaxRequestIdBytes);
  }
  if (wire.stop_size() > kMaxStopStrings) {
    return Refuse("stop: ", Grouped(wire.stop_size()), " strings, allowed at most ", kMaxStopStrings);
  }
  for (int i = 0; i < wire.stop_size(); ++i) {
    if (wire.stop(i).empty()) return Refuse("stop[", i, "]: empty, allowed 1..", kMaxStopBytes, " bytes");
    if (wire.stop(i).size() > kMaxStopBytes) {
      return Refuse("stop[", i, "]: ", Grouped(wire.stop(i).size()), " bytes, allowed 1..", kMaxStopBytes);
    }
  }
  const int eos_count = wire.ignore_eos() ? 0 : static_cast<int>(limits_.eos_ids.size());
  if (wire.stop_token_ids_size() > kMaxStopIds - eos_count) {
    return Refuse("stop_token_ids: ", Grouped(wire.stop_token_ids_size()), " ids, allowed at most ",
                  kMaxStopIds - eos_count);
  }
  if (wire.has_token_ids()) {
    RETURN_IF_ERROR(limits_.size.CheckPrompt("token_ids", wire.token_ids().ids_size()));
  }
  if (wire.chat().messages_size() > kMaxChatMessages) {
    return Refuse("chat.messages: ", Grouped(wire.chat().messages_size()), " messages, allowed at most ",
                  Grouped(kMaxChatMessages));
  }
  // A text that cannot fit whatever it says is not worth tokenizing.
  size_t bytes = wire.text().size();
  for (const v1::ChatMessage& message : wire.chat().messages()) bytes += message.content().size();
  const size_t most = static_cast<size_t>(limits_.size.max_seq_len) * limits_.longest_token_bytes;
  if (bytes > most) {
    return Refuse(wire.has_chat() ? "chat" : "text", ": ", Grouped(bytes), " bytes, at most ", Grouped(most),
                  " can fit max_seq_len ", Grouped(limits_.size.max_seq_len));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::PromptIds(const v1::GenerateRequest& wire) const {
  switch (wire.input_case()) {
    case v1::GenerateRequest::kText: {
      if (wire.text().empty()) return Refuse("text: empty, allowed at least 1 character");
      return EncodeText(wire.text(), {.parse_special = wire.parse_special()});
    }
    case v1::GenerateRequest::kTokenIds: {
      const auto& ids = wire.token_ids().ids();
      RETURN_IF_ERROR(CheckIds("token_ids", ids));
      return std::vector<int32_t>(ids.begin(), ids.end());
    }
    case v1::GenerateRequest::kChat:
      return ChatIds(wire.chat());
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return Refuse("input: empty, allowed one of text, token_ids, chat");
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::EncodeText(const std::string& text,
                                                                  const EncodeOptions& options) const {
  absl::StatusOr<std::vector<int32_t>> ids = tokenizer_.Encode(text, options);
  if (!ids.ok()) return Refuse("text: ", ids.status().message());
  return ids;
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::ChatIds(const v1::Chat& chat) const {
  if (chat_format_ == nullptr)
    return Refuse("chat: this model's tokenizer has no chat markup, allowed text, token_ids");
  if (chat.messages().empty()) return Refuse("chat.messages: empty, allowed at least 1 message");
  std::vector<ChatMessage> messages;
  for (int i = 0; i < chat.messages_size(); ++i) {
    const v1::ChatMessage& message = chat.messages(i);
    if (message.role() != "system" && message.role() != "user" && message.role() != "assistant") {
      return Refuse("chat.messages[", i, "].role: ", message.role().substr(0, 32),
                    ", allowed system, user, assistant");
    }
    messages.push_back({.role = message.role(), .content = message.content()});
  }
  return chat_format_->Render(messages);
}

absl::Status RequestValidator::CheckIds(const char* field,
                                        const google::protobuf::RepeatedField<int32_t>& ids) const {
  for (int i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= limits_.vocab_size) {
      return Refuse(field, "[", i, "]: ", ids[i], ", allowed 0..", limits_.vocab_size - 1,
                    " (the vocabulary)");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<SamplingParams> RequestValidator::Sampling(const v1::SamplingParams& wire) const {
  const GenerationConfig& defaults = limits_.defaults;
  SamplingParams sampling;
  sampling.temperature = wire.has_temperature() ? wire.temperature() : defaults.temperature.value_or(0);
  sampling.top_p = wire.has_top_p() ? wire.top_p() : defaults.top_p.value_or(1);
  sampling.top_k = wire.has_top_k() ? wire.top_k() : defaults.top_k.value_or(0);
  sampling.min_p = wire.has_min_p() ? wire.min_p() : defaults.min_p.value_or(0);
  sampling.repetition_penalty =
      wire.has_repetition_penalty() ? wire.repetition_penalty() : defaults.repetition_penalty.value_or(1);
  sampling.presence_penalty = wire.presence_penalty();
  sampling.frequency_penalty = wire.frequency_penalty();
  sampling.seed = wire.has_seed() ? wire.seed() : DrawSeed();
  RETURN_IF_ERROR(CheckRange("sampling.temperature", sampling.temperature, {0, 100}));
  RETURN_IF_ERROR(CheckRange("sampling.top_p", sampling.top_p, {0, 1, /*open_low=*/true}));
  RETURN_IF_ERROR(CheckRange("sampling.top_k", sampling.top_k, {-1, std::numeric_limits<int32_t>::max()}));
  RETURN_IF_ERROR(CheckRange("sampling.min_p", sampling.min_p, {0, 1}));
  RETURN_IF_ERROR(
      CheckRange("sampling.repetition_penalty", sampling.repetition_penalty, {0, 100, /*open_low=*/true}));
  RETURN_IF_ERROR(CheckRange("sampling.presence_penalty", sampling.presence_penalty, {-2, 2}));
  RETURN_IF_ERROR(CheckRange("sampling.frequency_penalty", sampling.frequency_penalty, {-2, 2}));
  sampling.top_k = std::clamp(sampling.top_k, 0, limits_.vocab_size);
  return sampling;
}

absl::StatusOr<int64_t> RequestValidator::MaxTokens(const v1::GenerateRequest& wire,
                                                    int64_t prompt_len) const {
  const char* field = InputField(wire);
  if (wire.has_max_tokens()) {
    RETURN_IF_ERROR(limits_.size.Check(field, prompt_len, wire.max_tokens()));
    return wire.max_tokens();
  }
  RETURN_IF_ERROR(limits_.size.CheckPrompt(field, prompt_len));
  return limits_.size.max_len() - prompt_len;
}

absl::StatusOr<std::vector<int32_t>> RequestValidator::CheckTokenize(const v1::TokenizeRequest& wire) const {
  size_t bytes = wire.text().size();
  for (const v1::ChatMessage& message : wire.chat().messages()) bytes += message.content().size();
  if (bytes > kMaxTokenizeBytes) {
    return Refuse(wire.has_chat() ? "chat" : "text", ": ", Grouped(bytes), " bytes, allowed at most ",
                  Grouped(kMaxTokenizeBytes));
  }
  if (wire.has_chat()) return ChatIds(wire.chat());
  if (!wire.has_text()) return Refuse("input: empty, allowed one of text, chat");
  const bool add_bos = !wire.has_add_bos() || wire.add_bos();
  return EncodeText(wire.text(), {.parse_special = wire.parse_special(), .add_bos = add_bos});
}

absl::StatusOr<std::string> RequestValidator::CheckDetokenize(const v1::DetokenizeRequest& wire) const {
  RETURN_IF_ERROR(CheckIds("token_ids", wire.token_ids()));
  return tokenizer_.Decode(wire.token_ids(), /*skip_special=*/false);
}

}  // namespace foredraft
