#include "engine/remote/plan_codec.h"

#include <vector>

#include "base/check.h"

namespace foredraft {
namespace {

template <class Field, class T>
void Put(const std::vector<T>& values, Field* field) {
  field->Add(values.begin(), values.end());
}

template <class T, class Field>
std::vector<T> Take(const Field& field) {
  return {field.begin(), field.end()};
}

template <class Swap>
void PutSwaps(const std::vector<Swap>& swaps, google::protobuf::RepeatedPtrField<v1::PlanSwap>* field) {
  for (const Swap& swap : swaps) {
    v1::PlanSwap* message = field->Add();
    message->set_image_id(swap.image_id);
    message->set_slot(swap.slot);
    Put(swap.block_ids, message->mutable_block_ids());
  }
}

template <class Swap>
std::vector<Swap> TakeSwaps(const google::protobuf::RepeatedPtrField<v1::PlanSwap>& field) {
  std::vector<Swap> swaps;
  for (const v1::PlanSwap& message : field) {
    swaps.push_back({.image_id = message.image_id(),
                     .slot = message.slot(),
                     .block_ids = Take<int32_t>(message.block_ids())});
  }
  return swaps;
}

void EncodeAcceptance(const Acceptance& acceptance, v1::PlanAcceptance* message) {
  message->set_relaxed_topk(acceptance.relaxed_topk);
  message->set_relaxed_delta(acceptance.relaxed_delta);
  message->set_forced_length(acceptance.forced_length);
}

Acceptance DecodeAcceptance(const v1::PlanAcceptance& message) {
  return {.relaxed_topk = message.relaxed_topk(),
          .relaxed_delta = message.relaxed_delta(),
          .forced_length = message.forced_length()};
}

void EncodeSampling(const SamplingParams& sampling, v1::PlanSampling* message) {
  message->set_temperature(sampling.temperature);
  message->set_top_p(sampling.top_p);
  message->set_top_k(sampling.top_k);
  message->set_min_p(sampling.min_p);
  message->set_repetition_penalty(sampling.repetition_penalty);
  message->set_presence_penalty(sampling.presence_penalty);
  message->set_frequency_penalty(sampling.frequency_penalty);
  message->set_seed(sampling.seed);
}

SamplingParams DecodeSampling(const v1::PlanSampling& message) {
  return {.temperature = message.temperature(),
          .top_p = message.top_p(),
          .top_k = message.top_k(),
          .min_p = message.min_p(),
          .repetition_penalty = message.repetition_penalty(),
          .presence_penalty = message.presence_penalty(),
          .frequency_penalty = message.frequency_penalty(),
          .seed = message.seed()};
}

void EncodeAdmission(const SlotAdmission& admission, v1::PlanAdmission* message) {
  message->set_slot(admission.slot);
  EncodeSampling(admission.sampling, message->mutable_sampling());
  message->set_logprob_count(admission.logprob_count);
  message->set_phase(static_cast<int32_t>(admission.phase));
  message->set_begin_thinking_id(admission.thinking.begin);
  message->set_end_thinking_id(admission.thinking.end);
  message->set_draft_cap(admission.draft_cap);
  message->set_strict(admission.strict);
  message->set_prompt_len(admission.prompt_len);
  message->set_length_limit(admission.length_limit);
  Put(admission.stop_ids, message->mutable_stop_ids());
  message->set_reused_len(admission.reused_len);
  message->set_boundary_block(admission.boundary_block);
  Put(admission.reused_ids, message->mutable_reused_ids());
}

SlotAdmission DecodeAdmission(const v1::PlanAdmission& message) {
  return {.slot = message.slot(),
          .sampling = DecodeSampling(message.sampling()),
          .logprob_count = message.logprob_count(),
          .phase = static_cast<Phase>(message.phase()),
          .thinking = {.begin = message.begin_thinking_id(), .end = message.end_thinking_id()},
          .draft_cap = message.draft_cap(),
          .strict = message.strict(),
          .prompt_len = message.prompt_len(),
          .length_limit = message.length_limit(),
          .stop_ids = Take<int32_t>(message.stop_ids()),
          .reused_len = message.reused_len(),
          .boundary_block = message.boundary_block(),
          .reused_ids = Take<int32_t>(message.reused_ids())};
}

void EncodeSlot(const SlotResult& slot, v1::ResultSlot* message) {
  message->set_slot(slot.slot);
  Put(slot.token_ids, message->mutable_token_ids());
  message->set_first_token(slot.first_token);
  message->set_length(slot.length);
  message->set_drafts_verified(slot.drafts_verified);
  message->set_relaxed_count(slot.relaxed_count);
  message->set_finished(slot.finished);
  for (const TokenLogprob& token : slot.logprobs) {
    v1::ResultLogprob* logprob = message->add_logprobs();
    logprob->set_token_id(token.token_id);
    logprob->set_logprob(token.logprob);
    for (const TopLogprob& top : token.top) {
      logprob->add_top_ids(top.token_id);
      logprob->add_top_logprobs(top.logprob);
    }
  }
  Put(slot.drafts, message->mutable_drafts());
}

SlotResult DecodeSlot(const v1::ResultSlot& message) {
  SlotResult slot{.slot = message.slot(),
                  .token_ids = Take<int32_t>(message.token_ids()),
                  .first_token = message.first_token(),
                  .length = message.length(),
                  .drafts_verified = message.drafts_verified(),
                  .relaxed_count = message.relaxed_count(),
                  .finished = message.finished(),
                  .drafts = Take<int32_t>(message.drafts())};
  for (const v1::ResultLogprob& logprob : message.logprobs()) {
    TokenLogprob& token = slot.logprobs.emplace_back(
        TokenLogprob{.token_id = logprob.token_id(), .logprob = logprob.logprob()});
    CHECK_EQ(logprob.top_ids_size(), logprob.top_logprobs_size());
    for (int i = 0; i < logprob.top_ids_size(); ++i) {
      token.top.push_back({.token_id = logprob.top_ids(i), .logprob = logprob.top_logprobs(i)});
    }
  }
  return slot;
}

}  // namespace

v1::WorkerPlan EncodePlan(const IterationPlan& plan, int rank) {
  const RankPlan& own = plan.ranks[rank];
  v1::WorkerPlan message;
  message.set_number(plan.number);
  message.set_draft_len(plan.draft_len);
  EncodeAcceptance(plan.acceptance, message.mutable_acceptance());
  message.set_decode_bucket(plan.decode_bucket);
  Put(plan.prefill_rows, message.mutable_prefill_rows());
  Put(plan.ended_prompts, message.mutable_ended_prompts());

  Put(own.releases, message.mutable_releases());
  Put(own.dropped_images, message.mutable_dropped_images());
  PutSwaps(own.swaps_out, message.mutable_swaps_out());
  PutSwaps(own.swaps_in, message.mutable_swaps_in());
  for (const SlotAdmission& admission : own.admissions) EncodeAdmission(admission, message.add_admissions());
  for (const BlockTableDelta& delta : own.block_table_deltas) {
    v1::PlanTableDelta* out = message.add_block_table_deltas();
    out->set_slot(delta.slot);
    out->set_first_index(delta.first_index);
    Put(delta.block_ids, out->mutable_block_ids());
  }
  for (const PrefillChunk& chunk : own.prefill_chunks) {
    v1::PlanChunk* out = message.add_prefill_chunks();
    out->set_slot(chunk.slot);
    out->set_first_position(chunk.first_position);
    Put(chunk.token_ids, out->mutable_token_ids());
    out->set_last(chunk.last);
  }
  Put(own.live_slots, message.mutable_live_slots());
  return message;
}

IterationPlan DecodePlan(const v1::WorkerPlan& message, int rank) {
  IterationPlan plan;
  plan.number = message.number();
  plan.draft_len = message.draft_len();
  plan.acceptance = DecodeAcceptance(message.acceptance());
  plan.decode_bucket = message.decode_bucket();
  plan.prefill_rows = Take<int32_t>(message.prefill_rows());
  plan.ended_prompts = Take<int32_t>(message.ended_prompts());
  CHECK_LT(rank, static_cast<int>(plan.prefill_rows.size()));
  plan.ranks.resize(plan.prefill_rows.size());

  RankPlan& own = plan.ranks[rank];
  own.releases = Take<int32_t>(message.releases());
  own.dropped_images = Take<uint64_t>(message.dropped_images());
  own.swaps_out = TakeSwaps<SwapOut>(message.swaps_out());
  own.swaps_in = TakeSwaps<SwapIn>(message.swaps_in());
  for (const v1::PlanAdmission& admission : message.admissions()) {
    own.admissions.push_back(DecodeAdmission(admission));
  }
  for (const v1::PlanTableDelta& delta : message.block_table_deltas()) {
    own.block_table_deltas.push_back({.slot = delta.slot(),
                                      .first_index = delta.first_index(),
                                      .block_ids = Take<int32_t>(delta.block_ids())});
  }
  for (const v1::PlanChunk& chunk : message.prefill_chunks()) {
    own.prefill_chunks.push_back({.slot = chunk.slot(),
                                  .first_position = chunk.first_position(),
                                  .token_ids = Take<int32_t>(chunk.token_ids()),
                                  .last = chunk.last()});
  }
  own.live_slots = Take<int32_t>(message.live_slots());
  return plan;
}

v1::WorkerResult EncodeResult(const RankResult& result) {
  v1::WorkerResult message;
  message.set_number(result.number);
  for (const SlotResult& slot : result.slots) EncodeSlot(slot, message.add_slots());
  message.set_prefill_seconds(result.prefill_seconds);
  message.set_decode_seconds(result.decode_seconds);
  message.set_replayed(result.replayed);
  return message;
}

RankResult DecodeResult(const v1::WorkerResult& message) {
  RankResult result{.number = message.number(),
                    .prefill_seconds = message.prefill_seconds(),
                    .decode_seconds = message.decode_seconds(),
                    .replayed = message.replayed()};
  for (const v1::ResultSlot& slot : message.slots()) result.slots.push_back(DecodeSlot(slot));
  return result;
}

}  // namespace foredraft
