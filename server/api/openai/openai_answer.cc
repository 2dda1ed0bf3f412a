#include "server/api/openai/openai_answer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "server/api/openai/openai_error.h"
#include "server/text/utf8.h"

namespace foredraft {
namespace {

using json = nlohmann::ordered_json;

std::string Dump(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

std::string Event(const json& value) { return absl::StrCat("data: ", Dump(value), "\n\n"); }

json Envelope(const AnswerShape& shape, bool is_chunk) {
  const bool chat = shape.kind == OpenAiKind::kChat;
  const char* object = !chat ? "text_completion" : is_chunk ? "chat.completion.chunk" : "chat.completion";
  return {{"id", shape.id},
          {"object", object},
          {"created", shape.created},
          {"model", shape.model},
          {"system_fingerprint", shape.fingerprint},
          {"choices", json::array()}};
}

json FinishOf(const OutputEnd* end) { return end == nullptr ? json(nullptr) : json(FinishReasonName(*end)); }

// vLLM's stop_reason: the request's own stop string or id that ended the answer; null if none did.
json StopOf(const OutputEnd* end) {
  if (end != nullptr && end->matched_stop.has_value()) return *end->matched_stop;
  if (end != nullptr && end->matched_stop_token_id.has_value()) return *end->matched_stop_token_id;
  return nullptr;
}

std::string TokenText(const AnswerShape& shape, int32_t id) {
  if (shape.tokens_as_ids) return absl::StrCat("token_id:", id);
  Utf8Repair repair;
  const std::string text = repair.Append(shape.tokenizer->TokenBytes(id));
  return text + repair.Flush();
}

int64_t CharactersOf(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](unsigned char byte) { return (byte & 0xc0) != 0x80; });
}

json TokenEntry(const AnswerShape& shape, int32_t id, float logprob) {
  json bytes = json::array();
  for (const unsigned char byte : shape.tokenizer->TokenBytes(id)) bytes.push_back(byte);
  return {{"token", TokenText(shape, id)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

json ChatLogprobs(const AnswerShape& shape, const OutputDelta& delta) {
  json content = json::array();
  for (const TokenLogprob& logprob : delta.logprobs) {
    json entry = TokenEntry(shape, logprob.token_id, logprob.logprob);
    json& top = entry["top_logprobs"] = json::array();
    for (const TopLogprob& other : logprob.top)
      top.push_back(TokenEntry(shape, other.token_id, other.logprob));
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}};
}

json CompletionLogprobs(const AnswerShape& shape, const OutputDelta& delta, int64_t& characters) {
  json tokens = json::array(), logprobs = json::array(), tops = json::array(), offsets = json::array();
  for (const TokenLogprob& logprob : delta.logprobs) {
    tokens.push_back(TokenText(shape, logprob.token_id));
    logprobs.push_back(logprob.logprob);
    json top = json::object();
    for (const TopLogprob& other : logprob.top) top[TokenText(shape, other.token_id)] = other.logprob;
    tops.push_back(std::move(top));
    offsets.push_back(characters);
    if (!shape.tokenizer->IsSpecial(logprob.token_id)) {
      characters += CharactersOf(shape.tokenizer->TokenBytes(logprob.token_id));
    }
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", std::move(offsets)}};
}

const char* OriginName(TokenOrigin origin) {
  switch (origin) {
    case TokenOrigin::kFirst:
      return "first";
    case TokenOrigin::kDrafted:
      return "drafted";
    case TokenOrigin::kTarget:
      break;
  }
  return "target";
}

// In a chat, the tokens' bytes add up to the two texts, which do not contain the markers of thinking.
void AddTokens(const OutputDelta& delta, json& choice) {
  json origins = json::array();
  json bytes = json::array();
  for (const TokenMark& mark : delta.marks) {
    origins.push_back(OriginName(mark.origin));
    bytes.push_back(mark.text_bytes);
  }
  choice["token_ids"] = delta.token_ids;
  choice["token_origins"] = std::move(origins);
  choice["token_text_bytes"] = std::move(bytes);
}

// Adds foredraft.v1's Speculation so far and, at the end, its Timing.
void AddFigures(const RequestStats& stats, int max_draft_len, bool has_ended, json& choice) {
  const std::vector<int> per_position(stats.accepted_at.begin(), stats.accepted_at.begin() + max_draft_len);
  choice["speculation"] = {{"steps", stats.steps},
                           {"draft_tokens", stats.draft_tokens},
                           {"accepted_tokens", stats.accepted_tokens},
                           {"accepted_per_position", per_position},
                           {"accepted_histogram", stats.AcceptedHistogram(max_draft_len)}};
  if (!has_ended) return;
  choice["timing"] = {{"queue_ms", stats.queue_ms},
                      {"ttft_ms", stats.ttft_ms},
                      {"total_ms", stats.total_ms},
                      {"tokens_per_second", stats.tokens_per_second()}};
}

// `content`: the message, its delta, or the text.
json ChoiceOf(const AnswerShape& shape, int index, json content, const OutputDelta& delta,
              const OutputEnd* end, const ResponseLabels& labels, ChoiceProgress& progress) {
  const bool chat = shape.kind == OpenAiKind::kChat;
  const char* name = !chat ? "text" : content.contains("delta") ? "delta" : "message";
  json choice = {{"index", index}, {name, std::move(chat ? content[name] : content)}};
  choice["logprobs"] = !shape.has_logprobs ? json(nullptr)
                       : chat              ? ChatLogprobs(shape, delta)
                                           : CompletionLogprobs(shape, delta, progress.characters);
  choice["finish_reason"] = FinishOf(end);
  if (end != nullptr) {
    choice["stop_reason"] = StopOf(end);
    choice["seed"] = labels.seed;
  }
  if (shape.return_token_ids) {
    AddTokens(delta, choice);
    AddFigures(delta.stats, labels.max_draft_len, end != nullptr, choice);
  }
  return choice;
}

json FunctionOf(const CallDelta& call) { return {{"name", call.name}, {"arguments", call.arguments}}; }

// A delta of a custom tool's call: its text, unquoted as it comes, and in the first delta its id and name.
json CustomDelta(const CallDelta& call, JsonStringReader& reader) {
  const std::string input = reader.Read(call.arguments);
  if (call.is_first()) {
    return {{"index", call.index},
            {"id", call.id},
            {"type", "custom"},
            {"custom", {{"name", call.name}, {"input", input}}}};
  }
  return input.empty() ? json() : json{{"index", call.index}, {"custom", {{"input", input}}}};
}

// The calls of a stream's event: a call's id and name come once, its arguments piece by piece.
json CallDeltas(const AnswerShape& shape, const std::vector<CallDelta>& calls, ChoiceProgress& progress) {
  json deltas = json::array();
  for (const CallDelta& call : calls) {
    if (call.is_first() && shape.custom_tools.contains(call.name)) progress.custom_inputs[call.index] = {};
    if (const auto custom = progress.custom_inputs.find(call.index); custom != progress.custom_inputs.end()) {
      json delta = CustomDelta(call, custom->second);
      if (!delta.is_null()) deltas.push_back(std::move(delta));
    } else if (call.is_first()) {
      deltas.push_back(
          {{"index", call.index}, {"id", call.id}, {"type", "function"}, {"function", FunctionOf(call)}});
    } else if (!call.arguments.empty()) {
      deltas.push_back({{"index", call.index}, {"function", {{"arguments", call.arguments}}}});
    }
  }
  return deltas;
}

json MessageOf(const AnswerShape& shape, const OutputDelta& whole) {
  const auto or_null = [](const std::string& text, bool is_null) {
    return is_null ? json(nullptr) : json(text);
  };
  json message = {
      {"role", "assistant"},
      {"content", or_null(whole.text, whole.text.empty() && !whole.calls.empty())},
      {"reasoning_content", or_null(whole.thinking, whole.thinking.empty() || shape.hides_thinking)}};
  if (whole.calls.empty()) return message;
  json& calls = message["tool_calls"] = json::array();
  for (const CallDelta& call : whole.calls) {
    if (shape.custom_tools.contains(call.name)) {
      json custom = {{"name", call.name}, {"input", JsonStringReader().Read(call.arguments)}};
      calls.push_back({{"id", call.id}, {"type", "custom"}, {"custom", std::move(custom)}});
    } else {
      calls.push_back({{"id", call.id}, {"type", "function"}, {"function", FunctionOf(call)}});
    }
  }
  return message;
}

json UsageOf(const std::vector<RequestStats>& stats, int choices_per_prompt) {
  int64_t prompt = 0, cached = 0, completion = 0, thinking = 0, accepted = 0, drafted = 0;
  for (size_t i = 0; i < stats.size(); ++i) {
    if (i % static_cast<size_t>(choices_per_prompt) == 0) {  // a prompt counts once
      prompt += stats[i].prompt_tokens;
      cached += stats[i].cached_tokens;
    }
    completion += stats[i].completion_tokens;
    thinking += stats[i].thinking_tokens;
    accepted += stats[i].accepted_tokens;
    drafted += stats[i].draft_tokens;
  }
  return {{"prompt_tokens", prompt},
          {"completion_tokens", completion},
          {"total_tokens", prompt + completion},
          {"prompt_tokens_details", {{"cached_tokens", cached}}},
          {"completion_tokens_details",
           {{"reasoning_tokens", thinking},
            {"accepted_prediction_tokens", accepted},
            {"rejected_prediction_tokens", drafted - accepted}}}};
}

}  // namespace

std::string ChunkEvent(const AnswerShape& shape, int index, const OutputDelta& delta, const OutputEnd* end,
                       const ResponseLabels& labels, ChoiceProgress& progress) {
  json content;
  bool says_something = end != nullptr || shape.has_logprobs || shape.return_token_ids ||
                        (shape.continuous_usage && !delta.token_ids.empty());
  if (shape.kind == OpenAiKind::kChat) {
    json message = json::object();
    if (!progress.has_begun) message["role"] = "assistant";
    if (!delta.thinking.empty() && !shape.hides_thinking) message["reasoning_content"] = delta.thinking;
    if (!delta.text.empty()) message["content"] = delta.text;
    if (json calls = CallDeltas(shape, delta.calls, progress); !calls.empty())
      message["tool_calls"] = std::move(calls);
    says_something |= !message.empty();
    content["delta"] = std::move(message);
  } else {
    says_something |= !delta.text.empty();
    content = delta.text;
  }
  if (!says_something) return "";
  progress.has_begun = true;
  json event = Envelope(shape, /*is_chunk=*/true);
  event["choices"].push_back(ChoiceOf(shape, index, std::move(content), delta, end, labels, progress));
  if (shape.continuous_usage) {
    event["usage"] = UsageOf({delta.stats}, 1);
  } else if (shape.include_usage) {
    event["usage"] = nullptr;
  }
  return Event(event);
}

std::string UsageEvent(const AnswerShape& shape, const std::vector<RequestStats>& stats,
                       int choices_per_prompt) {
  json event = Envelope(shape, /*is_chunk=*/true);
  event["usage"] = UsageOf(stats, choices_per_prompt);
  return Event(event);
}

std::string WholeBody(const AnswerShape& shape, const std::vector<ChoiceEnd>& choices,
                      int choices_per_prompt) {
  json body = Envelope(shape, /*is_chunk=*/false);
  std::vector<RequestStats> stats;
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceEnd& choice = choices[i];
    ChoiceProgress progress;
    json content;
    if (shape.kind == OpenAiKind::kChat) {
      content["message"] = MessageOf(shape, choice.whole);
    } else {
      content = choice.whole.text;
    }
    body["choices"].push_back(ChoiceOf(shape, static_cast<int>(i), std::move(content), choice.whole,
                                       &choice.end, choice.labels, progress));
    stats.push_back(choice.whole.stats);
  }
  body["usage"] = UsageOf(stats, choices_per_prompt);
  return Dump(body);
}

std::string ErrorEvent(const AnswerShape& shape, const absl::Status& status) {
  return Event(ErrorJson(shape.names(), status));
}

}  // namespace foredraft
