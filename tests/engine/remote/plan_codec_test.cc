#include "engine/remote/plan_codec.h"

#include <gtest/gtest.h>

#include <string>

namespace foredraft {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

// The names of fields that have their default value somewhere in the message, which tells nothing.
void FindUnset(const Message& message, const std::string& where, std::string* unset) {
  const google::protobuf::Reflection& reflection = *message.GetReflection();
  for (int i = 0; i < message.GetDescriptor()->field_count(); ++i) {
    const FieldDescriptor* field = message.GetDescriptor()->field(i);
    const std::string name = where + "." + field->name();
    if (field->is_repeated() ? reflection.FieldSize(message, field) == 0
                             : !reflection.HasField(message, field)) {
      *unset += name + " ";
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && field->is_repeated()) {
      for (int j = 0; j < reflection.FieldSize(message, field); ++j) {
        FindUnset(reflection.GetRepeatedMessage(message, field, j), name, unset);
      }
    } else if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) {
      FindUnset(reflection.GetMessage(message, field), name, unset);
    }
  }
}

// Every field has a value of its own.
IterationPlan FullPlan() {
  IterationPlan plan{.number = 1'000'000'000'007,
                     .draft_len = 3,
                     .acceptance = {.relaxed_topk = 5, .relaxed_delta = 0.25f, .forced_length = 1.5f},
                     .decode_bucket = 16,
                     .prefill_rows = {17, 0, 9},
                     .ended_prompts = {1, 0, 2}};
  plan.ranks.resize(3);
  plan.ranks[1] = {
      .releases = {3, 4},
      .dropped_images = {1ull << 60},
      .swaps_out = {{.image_id = 21, .slot = 5, .block_ids = {1, 2, 3}}},
      .swaps_in = {{.image_id = 22, .slot = 6, .block_ids = {7, 8}},
                   {.image_id = 23, .slot = 9, .block_ids = {4}}},
      .admissions = {{.slot = 7,
                      .sampling = {.temperature = 0.7f,
                                   .top_p = 0.9f,
                                   .top_k = 40,
                                   .min_p = 0.05f,
                                   .repetition_penalty = 1.1f,
                                   .presence_penalty = -0.5f,
                                   .frequency_penalty = 0.3f,
                                   .seed = ~0ull},
                      .logprob_count = -1,
                      .phase = Phase::kThinking,
                      .thinking = {.begin = 11, .end = 12},
                      .draft_cap = 2,
                      .strict = true,
                      .prompt_len = 100,
                      .length_limit = 163,
                      .stop_ids = {1, 2},
                      .reused_len = 32,
                      .boundary_block = 14,
                      .reused_ids = {9, 8, 7}}},
      .block_table_deltas = {{.slot = 7, .first_index = 2, .block_ids = {14, 0}}},
      .prefill_chunks = {{.slot = 7, .first_position = 32, .token_ids = {70'000, 5}, .last = true}},
      .live_slots = {7, 1},
  };
  return plan;
}

RankResult FullResult() {
  return {
      .number = 42,
      .slots = {{.slot = 3,
                 .token_ids = {5, 6, 7},
                 .first_token = true,
                 .length = 99,
                 .drafts_verified = 2,
                 .relaxed_count = 1,
                 .finished = true,
                 .logprobs = {{.token_id = 5, .logprob = -0.5f, .top = {{.token_id = 6, .logprob = -1.5f}}}},
                 .drafts = {8, 9}}},
      .prefill_seconds = 0.5,
      .decode_seconds = 0.25,
      .replayed = true};
}

// Fails to compile when a struct gets a field: add it here, to the full values above and to the codec.
TEST(PlanCodec, KnowsEveryField) {
  const IterationPlan plan = FullPlan();
  [[maybe_unused]] const auto& [number, draft_len, acceptance, bucket, rows, ended, ranks] = plan;
  [[maybe_unused]] const auto& [topk, delta, forced] = acceptance;
  [[maybe_unused]] const auto& [releases, images, outs, ins, admissions, deltas, chunks, live] = ranks[1];
  [[maybe_unused]] const auto& [slot, sampling, logprobs, phase, thinking, cap, strict, prompt, limit, stops,
                                reused, boundary, ids] = admissions[0];
  [[maybe_unused]] const auto& [begin_id, end_id] = thinking;
  [[maybe_unused]] const auto& [temperature, top_p, top_k, min_p, repetition, presence, frequency, seed] =
      sampling;
  [[maybe_unused]] const auto& [delta_slot, first_index, delta_blocks] = deltas[0];
  [[maybe_unused]] const auto& [chunk_slot, first_position, token_ids, last] = chunks[0];
  [[maybe_unused]] const auto& [out_image, out_slot, out_blocks] = outs[0];
  [[maybe_unused]] const auto& [in_image, in_slot, in_blocks] = ins[0];
  const RankResult result = FullResult();
  [[maybe_unused]] const auto& [of, slots, prefill, decode, replayed] = result;
  [[maybe_unused]] const auto& [result_slot, tokens, first, length, verified, relaxed, finished,
                                token_logprobs, drafts] = slots[0];
  [[maybe_unused]] const auto& [token, logprob, top] = token_logprobs[0];
  EXPECT_EQ(number + of, 1'000'000'000'049u);
  EXPECT_EQ(token, logprobs + 6);
}

TEST(PlanCodec, EncodesEveryField) {
  std::string unset;
  FindUnset(EncodePlan(FullPlan(), 1), "plan", &unset);
  FindUnset(EncodeResult(FullResult()), "result", &unset);
  EXPECT_EQ(unset, "");
}

TEST(PlanCodec, GivesBackWhatItTook) {
  const v1::WorkerPlan plan = EncodePlan(FullPlan(), 1);
  const IterationPlan decoded = DecodePlan(plan, 1);
  EXPECT_EQ(EncodePlan(decoded, 1).SerializeAsString(), plan.SerializeAsString());
  IterationPlan expected = FullPlan();
  EXPECT_EQ(decoded.DebugString(), expected.DebugString());

  const v1::WorkerResult result = EncodeResult(FullResult());
  EXPECT_EQ(EncodeResult(DecodeResult(result)).SerializeAsString(), result.SerializeAsString());
}

TEST(PlanCodec, SendsARankItsOwnPlanAlone) {
  const IterationPlan decoded = DecodePlan(EncodePlan(FullPlan(), 2), 2);
  ASSERT_EQ(decoded.ranks.size(), 3u);
  EXPECT_TRUE(decoded.ranks[1].live_slots.empty());
  EXPECT_EQ(decoded.prefill_rows, (std::vector<int32_t>{17, 0, 9}));
  EXPECT_EQ(decoded.ended_prompts, (std::vector<int32_t>{1, 0, 2}));
}

}  // namespace
}  // namespace foredraft
