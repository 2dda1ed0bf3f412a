#include "server/api/vllm_engine/messages.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace foredraft {
namespace {

constexpr uint32_t kMaxInt32 = std::numeric_limits<int32_t>::max();

template <class... Parts>
absl::Status Refuse(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat(parts...));
}

// Refuses fields that foredraft does not support.
absl::Status CheckUnsupported(const vllm_wire::GenerateRequest& wire) {
  const struct {
    const char* field;
    bool present;
  } fields[] = {{"kv_transfer_params", wire.has_kv_transfer_params()},
                {"kv_transfer_params_json", wire.has_kv_transfer_params_json()},
                {"mm_inputs", wire.has_mm_inputs()},
                {"extra_mm_inputs", wire.extra_mm_inputs_size() > 0},
                {"media_refs", wire.has_media_refs()}};
  for (const auto& [field, present] : fields) {
    if (present) return Refuse(field, ": not supported, allowed unset");
  }
  if (wire.data_parallel_rank() != 0) {
    return Refuse("data_parallel_rank: ", wire.data_parallel_rank(),
                  ", allowed 0: ranks share one scheduler");
  }
  return absl::OkStatus();
}

absl::Status CheckUnsupported(const vllm_wire::SamplingParams& wire) {
  if (wire.n() > 1) return Refuse("sampling_params.n: ", wire.n(), ", allowed 1");
  if (wire.has_prompt_logprobs()) {
    return Refuse("sampling_params.prompt_logprobs: ", wire.prompt_logprobs(), ", allowed unset");
  }
  if (wire.include_stop_str_in_output()) {
    return Refuse("sampling_params.include_stop_str_in_output: true, allowed false");
  }
  if (wire.has_truncate_prompt_tokens()) {
    return Refuse("sampling_params.truncate_prompt_tokens: ", wire.truncate_prompt_tokens(),
                  ", allowed unset");
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> ReadIds(const char* field,
                                             const google::protobuf::RepeatedField<uint32_t>& wire) {
  std::vector<int32_t> ids;
  ids.reserve(wire.size());
  for (const uint32_t id : wire) {
    if (id > kMaxInt32) return Refuse(field, "[", ids.size(), "]: ", id, ", allowed at most ", kMaxInt32);
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

ClientSampling ReadSampling(const vllm_wire::SamplingParams& wire) {
  ClientSampling sampling;
  if (wire.has_temperature()) sampling.temperature = wire.temperature();
  if (wire.top_p() != 0) sampling.top_p = wire.top_p();
  sampling.top_k = static_cast<int32_t>(std::min(wire.top_k(), kMaxInt32));  // more than any vocabulary
  sampling.min_p = wire.min_p();
  if (wire.repetition_penalty() != 0) sampling.repetition_penalty = wire.repetition_penalty();
  sampling.presence_penalty = wire.presence_penalty();
  sampling.frequency_penalty = wire.frequency_penalty();
  if (wire.has_seed()) sampling.seed = static_cast<uint32_t>(wire.seed());
  sampling.min_tokens =
      static_cast<int32_t>(std::min(wire.min_tokens(), kMaxInt32));  // more than any max_tokens
  for (const auto& [token_id, bias] : wire.logit_bias()) sampling.logit_bias.push_back({token_id, bias});
  return sampling;
}

std::optional<ClientConstraint> ReadConstraint(const vllm_wire::SamplingParams& wire) {
  ClientConstraint read{.from_first_token = wire.grammar_from_first_token()};
  switch (wire.constraint_case()) {
    case vllm_wire::SamplingParams::kJsonSchema:
      read.kind = Constraint::kJsonSchema;
      read.source = wire.json_schema();
      break;
    case vllm_wire::SamplingParams::kRegex:
      read.kind = Constraint::kRegex;
      read.source = wire.regex();
      break;
    case vllm_wire::SamplingParams::kGrammar:
      read.kind = Constraint::kGbnf;
      read.source = wire.grammar();
      break;
    case vllm_wire::SamplingParams::kStructuralTag:
      read.kind = Constraint::kStructuralTag;
      read.source = wire.structural_tag();
      break;
    case vllm_wire::SamplingParams::kJsonObject:
      if (!wire.json_object()) return std::nullopt;
      read.kind = Constraint::kJsonObject;
      break;
    case vllm_wire::SamplingParams::kChoice:
      read.kind = Constraint::kChoice;
      read.choices.assign(wire.choice().choices().begin(), wire.choice().choices().end());
      break;
    case vllm_wire::SamplingParams::CONSTRAINT_NOT_SET:
      return std::nullopt;
  }
  read.field = absl::StrCat("sampling_params.", std::string(ConstraintField(*read.kind)));
  return read;
}

absl::StatusOr<PromptInput> ReadInput(const vllm_wire::GenerateRequest& wire) {
  switch (wire.input_case()) {
    case vllm_wire::GenerateRequest::kTokenized: {
      ASSIGN_OR_RETURN(std::vector<int32_t> ids,
                       ReadIds("tokenized.input_ids", wire.tokenized().input_ids()));
      return PromptInput(std::move(ids));
    }
    case vllm_wire::GenerateRequest::kText:
      return PromptInput(wire.text());
    case vllm_wire::GenerateRequest::INPUT_NOT_SET:
      break;
  }
  return Refuse("input: empty, allowed one of tokenized, text");
}

void FillLogprobs(const std::vector<TokenLogprob>& logprobs, vllm_wire::OutputLogProbs* wire) {
  for (const TokenLogprob& logprob : logprobs) {
    wire->add_token_logprobs(logprob.logprob);
    wire->add_token_ids(logprob.token_id);
    vllm_wire::TopLogProbs* tops = wire->add_top_logprobs();
    for (const TopLogprob& top : logprob.top) {
      tops->add_values(top.logprob);
      tops->add_token_ids(top.token_id);
    }
  }
}

// Fills in the fields that a chunk and the end share.
template <class Message>
void FillCounts(const RequestStats& stats, Message* message) {
  message->set_prompt_tokens(stats.prompt_tokens);
  message->set_completion_tokens(stats.completion_tokens);
  message->set_cached_tokens(stats.cached_tokens);
}

// The wire knows three finish reasons: a deadline is an abort there.
const char* WireFinishReason(FinishReason finish) {
  return finish == FinishReason::kStop || finish == FinishReason::kLength ? FinishReasonName(finish)
                                                                          : "abort";
}

}  // namespace

absl::StatusOr<ClientRequest> ReadRequest(const vllm_wire::GenerateRequest& wire) {
  const vllm_wire::SamplingParams& params = wire.sampling_params();
  RETURN_IF_ERROR(CheckUnsupported(wire));
  RETURN_IF_ERROR(CheckUnsupported(params));
  ClientRequest request;
  request.request_id = wire.request_id();
  ASSIGN_OR_RETURN(request.input, ReadInput(wire));
  request.parse_special = true;
  request.sampling = ReadSampling(params);
  request.constraint = ReadConstraint(params);
  if (params.has_max_tokens()) {
    if (params.max_tokens() > kMaxInt32) {
      return Refuse("sampling_params.max_tokens: ", params.max_tokens(), ", allowed at most ", kMaxInt32);
    }
    request.max_tokens = static_cast<int32_t>(params.max_tokens());
  }
  request.stop.assign(params.stop().begin(), params.stop().end());
  ASSIGN_OR_RETURN(request.stop_token_ids,
                   ReadIds("sampling_params.stop_token_ids", params.stop_token_ids()));
  request.ignore_eos = params.ignore_eos();
  if (params.has_logprobs()) request.logprobs = params.logprobs();
  return request;
}

void FillChunk(const OutputDelta& delta, vllm_wire::GenerateStreamChunk* chunk) {
  chunk->mutable_token_ids()->Assign(delta.token_ids.begin(), delta.token_ids.end());
  FillCounts(delta.stats, chunk);
  if (!delta.logprobs.empty()) FillLogprobs(delta.logprobs, chunk->mutable_output_logprobs());
}

void FillComplete(const OutputDelta& whole, const OutputEnd& end, vllm_wire::GenerateComplete* complete) {
  complete->mutable_output_ids()->Assign(whole.token_ids.begin(), whole.token_ids.end());
  complete->set_finish_reason(WireFinishReason(end.finish));
  FillCounts(whole.stats, complete);
  if (!whole.logprobs.empty()) FillLogprobs(whole.logprobs, complete->mutable_output_logprobs());
  if (end.matched_stop_token_id) complete->set_matched_token_id(*end.matched_stop_token_id);
  if (end.matched_stop) complete->set_matched_stop_str(*end.matched_stop);
  complete->set_spec_accepted_tokens(whole.stats.accepted_tokens);
  complete->set_spec_draft_tokens(whole.stats.draft_tokens);
}

void FillModelInfo(const ModelCard& card, vllm_wire::GetModelInfoResponse* response) {
  response->set_model_path(card.model_path);
  response->set_tokenizer_path(card.model_path);
  response->set_is_generation(true);
  response->set_max_context_length(card.max_seq_len);
  response->set_max_req_input_len(card.max_seq_len - 1);
  response->set_vocab_size(card.vocab_size);
  response->set_served_model_name(card.name);
  response->set_model_type(card.model_type);
  response->add_architectures(card.architecture);
  response->mutable_eos_token_ids()->Assign(card.eos_ids.begin(), card.eos_ids.end());
  response->set_bos_token_id(std::max(card.bos_id, 0));  // the wire cannot say "none"
  const SamplingParams& defaults = card.default_sampling;
  response->set_default_sampling_params_json(nlohmann::json{
      {"temperature", defaults.temperature},
      {"top_p", defaults.top_p},
      {"top_k", defaults.top_k},
      {"min_p", defaults.min_p},
      {"repetition_penalty",
       defaults.repetition_penalty}}.dump());
}

void FillLoads(const ServerLoad& load, const ModelCard& card, vllm_wire::GetLoadsResponse* response) {
  const SchedulerLoad& scheduler = load.scheduler;
  const auto ratio = [](double part, double whole) { return whole > 0 ? part / whole : 0; };
  const int64_t used_tokens = scheduler.blocks_used * card.tokens_per_block;
  const int64_t all_tokens =
      used_tokens + (scheduler.blocks_free + scheduler.blocks_cached) * card.tokens_per_block;
  response->set_version(card.version);
  response->set_dp_rank_count(1);
  vllm_wire::SchedulerLoad* wire = response->add_loads();
  wire->set_num_running_reqs(scheduler.running);
  wire->set_num_waiting_reqs(scheduler.waiting);
  wire->set_num_total_reqs(scheduler.running + scheduler.waiting);
  wire->set_num_used_tokens(static_cast<int32_t>(std::min<int64_t>(used_tokens, kMaxInt32)));
  wire->set_max_total_num_tokens(static_cast<int32_t>(std::min<int64_t>(all_tokens, kMaxInt32)));
  wire->set_token_usage(ratio(static_cast<double>(used_tokens), static_cast<double>(all_tokens)));
  wire->set_cache_hit_rate(ratio(static_cast<double>(scheduler.prefix_hit_tokens),
                                 static_cast<double>(scheduler.prefix_queried_tokens)));
  wire->set_max_running_requests(card.max_batch_size);
  wire->set_num_waiting_uncached_tokens(
      static_cast<int32_t>(std::min<int64_t>(scheduler.waiting_prompt_tokens, kMaxInt32)));
}

}  // namespace foredraft
