#include "server/api/response_fields.h"

namespace foredraft {
namespace {

void FillUsage(const Tally& tally, v1::Usage* usage) {
  usage->set_prompt_tokens(tally.prompt_tokens);
  usage->set_completion_tokens(tally.completion_tokens);
  usage->set_cached_tokens(tally.cached_tokens);
  usage->set_thinking_tokens(tally.thinking_tokens);
}

void FillSpeculation(const Tally& tally, const ResponseLabels& labels, v1::Speculation* speculation) {
  speculation->set_steps(tally.steps);
  speculation->set_draft_tokens(tally.draft_tokens);
  speculation->set_accepted_tokens(tally.accepted_tokens);
  speculation->set_acceptance_length(tally.acceptance_length());
  speculation->clear_accepted_per_position();
  for (int i = 0; i < labels.max_draft_len; ++i) speculation->add_accepted_per_position(tally.accepted_at[i]);
  speculation->set_relaxed_tokens(tally.relaxed_tokens);
  speculation->set_forced(tally.forced);
}

}  // namespace

void FillChunk(const OutputDelta& delta, const ResponseLabels& labels, v1::GenerateChunk* chunk) {
  const int index = delta.tally.completion_tokens - static_cast<int>(delta.token_ids.size());
  chunk->set_index(index);
  if (index == 0) {
    chunk->set_request_id(labels.request_id);
    chunk->set_seed(labels.seed);
  } else {
    chunk->clear_request_id();
    chunk->clear_seed();
  }
  chunk->set_text(delta.text);
  chunk->mutable_token_ids()->Assign(delta.token_ids.begin(), delta.token_ids.end());
  chunk->clear_logprobs();
  for (const TokenLogprob& logprob : delta.logprobs) {
    v1::TokenLogprob* wire = chunk->add_logprobs();
    wire->set_token_id(logprob.token_id);
    wire->set_logprob(logprob.logprob);
    for (const TopLogprob& top : logprob.top) {
      v1::TopLogprob* wire_top = wire->add_top();
      wire_top->set_token_id(top.token_id);
      wire_top->set_logprob(top.logprob);
    }
  }
  FillUsage(delta.tally, chunk->mutable_usage());
  FillSpeculation(delta.tally, labels, chunk->mutable_speculation());
}

void FillEnd(const Tally& tally, const OutputEnd& end, const ResponseLabels& labels,
             v1::GenerateChunk* chunk) {
  chunk->set_request_id(labels.request_id);
  chunk->set_seed(labels.seed);
  chunk->set_finish_reason(FinishReasonName(end.finish));
  if (end.matched_stop) chunk->set_matched_stop(*end.matched_stop);
  if (end.matched_stop_token_id) chunk->set_matched_stop_token_id(*end.matched_stop_token_id);
  v1::Timing* timing = chunk->mutable_timing();
  timing->set_queue_ms(tally.queue_ms);
  timing->set_ttft_ms(tally.ttft_ms);
  timing->set_total_ms(tally.total_ms);
  timing->set_tokens_per_second(tally.tokens_per_second());
}

void FillResponse(const v1::GenerateChunk& whole, v1::GenerateResponse* response) {
  response->set_request_id(whole.request_id());
  response->set_text(whole.text());
  *response->mutable_token_ids() = whole.token_ids();
  response->set_finish_reason(whole.finish_reason());
  if (whole.has_matched_stop()) response->set_matched_stop(whole.matched_stop());
  if (whole.has_matched_stop_token_id()) response->set_matched_stop_token_id(whole.matched_stop_token_id());
  response->set_seed(whole.seed());
  *response->mutable_logprobs() = whole.logprobs();
  *response->mutable_usage() = whole.usage();
  *response->mutable_speculation() = whole.speculation();
  *response->mutable_timing() = whole.timing();
}

grpc::Status ToGrpc(const absl::Status& status) {
  // The codes of both are the canonical ones, number by number.
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

}  // namespace foredraft
