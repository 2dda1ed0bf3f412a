#include "server/api/foredraft_v1/messages.h"

#include <string>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace foredraft {
namespace {

// The value named `prefix` and then `text` in capitals: an enum and the strings that it mirrors share their
// names.
template <class Enum>
Enum EnumNamed(const char* prefix, const std::string& text) {
  const auto* value = google::protobuf::GetEnumDescriptor<Enum>()->FindValueByName(
      absl::StrCat(prefix, absl::AsciiStrToUpper(text)));
  CHECK(value != nullptr) << "no enum value for " << text;
  return static_cast<Enum>(value->number());
}

std::string RoleOf(const v1::ChatMessage& message) {
  if (!message.role().empty() || !v1::ChatRole_IsValid(message.chat_role()) ||
      message.chat_role() == v1::CHAT_ROLE_UNSPECIFIED) {
    return message.role();
  }
  return absl::AsciiStrToLower(v1::ChatRole_Name(message.chat_role()).substr(sizeof("CHAT_ROLE_") - 1));
}

ChatMessages ReadChat(const v1::Chat& wire) {
  ChatMessages messages;
  for (const v1::ChatMessage& message : wire.messages()) {
    ChatMessage& read = messages.emplace_back();
    read.role = RoleOf(message);
    read.content = message.content();
    read.tool_call_id = message.tool_call_id();
    read.thinking = message.thinking();
    for (const v1::ToolCall& call : message.tool_calls()) {
      read.tool_calls.push_back({.id = call.id(), .name = call.name(), .arguments = call.arguments()});
    }
  }
  return messages;
}

// The thinking choices of a Generate or Tokenize request.
template <typename Request>
ChatChoices ChoicesIn(const Request& wire) {
  ChatChoices choices = {.reasoning_effort = wire.chat().reasoning_effort()};
  if (wire.has_thinking()) choices.thinking = wire.thinking();
  return choices;
}

PromptInput ReadInput(const v1::GenerateRequest& wire) {
  switch (wire.input_case()) {
    case v1::GenerateRequest::kText:
      return wire.text();
    case v1::GenerateRequest::kTokenIds:
      return std::vector<int32_t>(wire.token_ids().ids().begin(), wire.token_ids().ids().end());
    case v1::GenerateRequest::kChat:
      return ReadChat(wire.chat());
    case v1::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return {};
}

ClientSampling ReadSampling(const v1::SamplingParams& wire) {
  ClientSampling sampling;
  if (wire.has_temperature()) sampling.temperature = wire.temperature();
  if (wire.has_top_p()) sampling.top_p = wire.top_p();
  if (wire.has_top_k()) sampling.top_k = wire.top_k();
  if (wire.has_min_p()) sampling.min_p = wire.min_p();
  if (wire.has_repetition_penalty()) sampling.repetition_penalty = wire.repetition_penalty();
  if (wire.has_presence_penalty()) sampling.presence_penalty = wire.presence_penalty();
  if (wire.has_frequency_penalty()) sampling.frequency_penalty = wire.frequency_penalty();
  if (wire.has_seed()) sampling.seed = wire.seed();
  sampling.min_tokens = wire.min_tokens();
  for (const auto& [token_id, bias] : wire.logit_bias()) sampling.logit_bias.push_back({token_id, bias});
  return sampling;
}

ClientConstraint ReadConstraint(const v1::Constraint& wire) {
  ClientConstraint read{
      .field = "constraint", .compact = wire.compact(), .from_first_token = wire.from_first_token()};
  const auto set = [&read](Constraint::Kind kind, std::string source) {
    read.field = absl::StrCat("constraint.", std::string(ConstraintField(kind)));
    read.kind = kind;
    read.source = std::move(source);
  };
  switch (wire.kind_case()) {
    case v1::Constraint::kJsonSchema:
      set(Constraint::kJsonSchema, wire.json_schema());
      break;
    case v1::Constraint::kJsonObject:
      if (wire.json_object()) set(Constraint::kJsonObject, "");
      break;
    case v1::Constraint::kRegex:
      set(Constraint::kRegex, wire.regex());
      break;
    case v1::Constraint::kChoice:
      set(Constraint::kChoice, "");
      read.choices.assign(wire.choice().choices().begin(), wire.choice().choices().end());
      break;
    case v1::Constraint::kGrammar:
      set(Constraint::kGbnf, wire.grammar());
      break;
    case v1::Constraint::kStructuralTag:
      set(Constraint::kStructuralTag, wire.structural_tag());
      break;
    case v1::Constraint::KIND_NOT_SET:
      break;
  }
  return read;
}

void FillUsage(const RequestStats& stats, v1::Usage* usage) {
  usage->set_prompt_tokens(stats.prompt_tokens);
  usage->set_completion_tokens(stats.completion_tokens);
  usage->set_cached_tokens(stats.cached_tokens);
  usage->set_thinking_tokens(stats.thinking_tokens);
}

void FillSpeculation(const RequestStats& stats, int max_draft_len, v1::Speculation* speculation) {
  speculation->set_steps(stats.steps);
  speculation->set_draft_tokens(stats.draft_tokens);
  speculation->set_accepted_tokens(stats.accepted_tokens);
  speculation->set_acceptance_length(stats.acceptance_length());
  speculation->clear_accepted_per_position();
  for (int i = 0; i < max_draft_len; ++i) speculation->add_accepted_per_position(stats.accepted_at[i]);
  speculation->clear_accepted_histogram();
  for (const int steps : stats.AcceptedHistogram(max_draft_len)) speculation->add_accepted_histogram(steps);
  speculation->set_relaxed_tokens(stats.relaxed_tokens);
  speculation->set_drafts_outside_grammar(stats.drafts_outside_grammar);
  speculation->set_forced_drafts(stats.forced_drafts);
  speculation->set_forced(stats.forced);
}

void FillTiming(const RequestStats& stats, v1::Timing* timing) {
  timing->set_queue_ms(stats.queue_ms);
  timing->set_ttft_ms(stats.ttft_ms);
  timing->set_total_ms(stats.total_ms);
  timing->set_tokens_per_second(stats.tokens_per_second());
}

template <class Message>
void AddCalls(const std::vector<ToolCall>& calls, Message* message) {
  for (const ToolCall& call : calls) {
    v1::ToolCall* wire = message->add_tool_calls();
    wire->set_id(call.id);
    wire->set_name(call.name);
    wire->set_arguments(call.arguments);
  }
}

v1::TokenOrigin OriginOf(const TokenMark& mark) {
  switch (mark.origin) {
    case TokenOrigin::kFirst:
      return v1::TOKEN_ORIGIN_FIRST;
    case TokenOrigin::kTarget:
      return v1::TOKEN_ORIGIN_TARGET;
    case TokenOrigin::kDrafted:
      return v1::TOKEN_ORIGIN_DRAFTED;
  }
  return v1::TOKEN_ORIGIN_UNSPECIFIED;
}

// The fields that GenerateChunk and GenerateResponse share: tokens, and how the request ended.
template <class Message>
void FillTokens(const OutputDelta& delta, const ResponseLabels& labels, CallJoiner& calls, Message* message) {
  message->set_text(delta.text);
  message->set_thinking(delta.thinking);
  message->clear_tool_calls();
  AddCalls(calls.Add(delta.calls), message);
  message->mutable_token_ids()->Assign(delta.token_ids.begin(), delta.token_ids.end());
  message->clear_token_origins();
  message->clear_token_text_bytes();
  for (const TokenMark& mark : delta.marks) {
    message->add_token_origins(OriginOf(mark));
    message->add_token_text_bytes(mark.text_bytes);
  }
  message->clear_logprobs();
  for (const TokenLogprob& logprob : delta.logprobs) {
    v1::TokenLogprob* wire = message->add_logprobs();
    wire->set_token_id(logprob.token_id);
    wire->set_logprob(logprob.logprob);
    for (const TopLogprob& top : logprob.top) {
      v1::TopLogprob* wire_top = wire->add_top();
      wire_top->set_token_id(top.token_id);
      wire_top->set_logprob(top.logprob);
    }
  }
  FillUsage(delta.stats, message->mutable_usage());
  FillSpeculation(delta.stats, labels.max_draft_len, message->mutable_speculation());
}

template <class Message>
void FillFinish(const RequestStats& stats, const OutputEnd& end, const ResponseLabels& labels,
                CallJoiner& calls, Message* message) {
  AddCalls(calls.TakeRest(), message);
  message->set_request_id(labels.request_id);
  message->set_seed(labels.seed);
  message->set_finish_reason(FinishReasonName(end));
  message->set_finish(EnumNamed<v1::FinishReason>("FINISH_REASON_", message->finish_reason()));
  if (end.matched_stop) message->set_matched_stop(*end.matched_stop);
  if (end.matched_stop_token_id) message->set_matched_stop_token_id(*end.matched_stop_token_id);
  FillTiming(stats, message->mutable_timing());
}

}  // namespace

ChatTools ReadTools(const v1::Chat& wire) {
  ChatTools read;
  for (const v1::Tool& tool : wire.tools()) {
    read.tools.push_back({.name = tool.name(),
                          .description = tool.description(),
                          .parameters = tool.parameters(),
                          .strict = tool.strict(),
                          .says_strict = tool.strict()});
  }
  read.choice = wire.tool_choice();
  read.allowed.assign(wire.allowed_tools().begin(), wire.allowed_tools().end());
  if (wire.has_parallel_tool_calls()) read.parallel = wire.parallel_tool_calls();
  return read;
}

std::vector<ToolCall> CallJoiner::Add(const std::vector<CallDelta>& deltas) {
  std::vector<ToolCall> whole;
  for (const CallDelta& delta : deltas) {
    if (delta.is_first()) open_ = ToolCall{.id = delta.id, .name = delta.name};
    if (!open_.has_value()) continue;
    open_->arguments += delta.arguments;
    if (delta.complete) whole.push_back(*std::exchange(open_, std::nullopt));
  }
  return whole;
}

std::vector<ToolCall> CallJoiner::TakeRest() {
  std::vector<ToolCall> rest;
  if (open_.has_value()) rest.push_back(*std::exchange(open_, std::nullopt));
  return rest;
}

ClientRequest ReadRequest(const v1::GenerateRequest& wire) {
  ClientRequest request;
  request.request_id = wire.request_id();
  request.input = ReadInput(wire);
  if (wire.has_chat()) request.tools = ReadTools(wire.chat());
  if (wire.has_constraint()) request.constraint = ReadConstraint(wire.constraint());
  request.raw_text = wire.raw_text();
  request.choices = ChoicesIn(wire);
  request.parse_special = wire.parse_special();
  request.sampling = ReadSampling(wire.sampling());
  if (wire.has_max_tokens()) request.max_tokens = wire.max_tokens();
  request.stop.assign(wire.stop().begin(), wire.stop().end());
  request.stop_token_ids.assign(wire.stop_token_ids().begin(), wire.stop_token_ids().end());
  request.ignore_eos = wire.ignore_eos();
  if (wire.has_logprobs()) request.logprobs = wire.logprobs();
  if (wire.has_max_draft_tokens()) request.max_draft_tokens = wire.max_draft_tokens();
  request.strict_acceptance = wire.strict_acceptance();
  if (wire.has_thinking_token_budget()) request.thinking_budget = wire.thinking_token_budget();
  request.priority = wire.priority();
  if (wire.has_timeout_s()) request.timeout_s = wire.timeout_s();
  return request;
}

ChatChoices ReadChoices(const v1::TokenizeRequest& wire) { return ChoicesIn(wire); }

PromptInput ReadInput(const v1::TokenizeRequest& wire) {
  if (wire.has_text()) return wire.text();
  if (wire.has_chat()) return ReadChat(wire.chat());
  return {};
}

void FillChunk(const OutputDelta& delta, const ResponseLabels& labels, CallJoiner& calls,
               v1::GenerateChunk* chunk) {
  const int index = delta.stats.completion_tokens - static_cast<int>(delta.token_ids.size());
  chunk->set_index(index);
  if (index == 0) {
    chunk->set_request_id(labels.request_id);
    chunk->set_seed(labels.seed);
  } else {
    chunk->clear_request_id();
    chunk->clear_seed();
  }
  FillTokens(delta, labels, calls, chunk);
}

void FillEnd(const RequestStats& stats, const OutputEnd& end, const ResponseLabels& labels, CallJoiner& calls,
             v1::GenerateChunk* chunk) {
  FillFinish(stats, end, labels, calls, chunk);
}

void FillResponse(const OutputDelta& whole, const OutputEnd& end, const ResponseLabels& labels,
                  v1::GenerateResponse* response) {
  CallJoiner calls;
  FillTokens(whole, labels, calls, response);
  FillFinish(whole.stats, end, labels, calls, response);
}

void FillModel(const ModelCard& card, const RequestValidator& validator, v1::GetModelResponse* response) {
  const ThinkingIds thinking = validator.thinking();
  response->set_tools(validator.has_chat());
  if (validator.has_constraints()) {
    for (int kind = Constraint::kJsonSchema; kind <= Constraint::kStructuralTag; ++kind) {
      response->add_constraints(std::string(ConstraintField(static_cast<Constraint::Kind>(kind))));
    }
  }
  response->set_name(card.name);
  response->set_architecture(card.architecture);
  response->set_vocab_size(card.vocab_size);
  response->set_max_seq_len(card.max_seq_len);
  response->set_mtp_modules(card.mtp_modules);
  response->set_max_draft_len(card.max_draft_len);
  response->mutable_eos_token_ids()->Assign(card.eos_ids.begin(), card.eos_ids.end());
  response->set_bos_token_id(card.bos_id);
  response->set_begin_thinking_token_id(thinking.begin);
  response->set_end_thinking_token_id(thinking.end);
  v1::SamplingParams* sampling = response->mutable_default_sampling();
  sampling->set_temperature(card.default_sampling.temperature);
  sampling->set_top_p(card.default_sampling.top_p);
  sampling->set_top_k(card.default_sampling.top_k);
  sampling->set_min_p(card.default_sampling.min_p);
  sampling->set_repetition_penalty(card.default_sampling.repetition_penalty);
  sampling->set_presence_penalty(card.default_sampling.presence_penalty);
  sampling->set_frequency_penalty(card.default_sampling.frequency_penalty);
  response->set_backend(card.backend);
  response->set_numerics_class(card.numerics_class);
  response->set_version(card.version);
}

void FillLoad(const ServerLoad& load, v1::GetLoadResponse* response) {
  response->set_running(load.scheduler.running);
  response->set_waiting(load.scheduler.waiting);
  response->set_swapped(load.scheduler.swapped);
  response->set_slots_used(load.scheduler.slots_used);
  response->set_blocks_used(load.scheduler.blocks_used);
  response->set_blocks_free(load.scheduler.blocks_free);
  response->set_blocks_cached(load.scheduler.blocks_cached);
  response->set_draft_len(load.scheduler.draft_len);
  response->set_open_streams(load.open_calls);
  response->set_state(ServingStateName(load.state));
  response->set_serving_state(EnumNamed<v1::ServingState>("SERVING_STATE_", response->state()));
}

}  // namespace foredraft
